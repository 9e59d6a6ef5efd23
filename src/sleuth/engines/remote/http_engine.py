"""An engine on one server that serves the checkpoint, for evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import MALFORMED, RawCompletion, read_completion
from sleuth.engines.remote.http_client import HttpClient, HttpClientError, TimedOutError, UnavailableError
from sleuth.engines.remote.server import Server
from sleuth.engines.remote.streamed import LlamaCppPython, generate
from sleuth.engines.sampling import max_new_tokens, whole_chunk
from sleuth.types import Chunk, Completion, Sampling, SleuthError

ANSWER_SECONDS = 900.0  # for one turn, including the time in the server's queue
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before another attempt


class HttpEngine:
    """Continues token sequences on `server`, at most `requests_at_once` concurrently.

    A request is retried only if the server was unreachable or refused it before starting; any other failure is a
    SleuthError that names the server.
    """

    def __init__(
        self,
        server: Server,
        tokenizer: PreTrainedTokenizerFast,
        *,
        eos_ids: Collection[int],
        requests_at_once: int,
        context: int,
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.context = context
        self._semaphore = asyncio.Semaphore(1 if isinstance(server.api, LlamaCppPython) else requests_at_once)
        self._weights: str | None = None
        self._client = HttpClient(server.url, seconds=ANSWER_SECONDS)

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, in one chunk. Closing the iterator early cancels the request, also on the server."""
        yield whole_chunk(await self.complete(tokens, sampling))

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop."""
        limit = max_new_tokens(tokens, sampling, self.context)
        if limit < 1:
            return Completion(tokens=(), logprobs=(), text="", stop="length")
        async with self._semaphore:
            raw = await self._request(tokens, sampling, limit)
        try:
            return read_completion(raw, tokens, sampling, limit=limit, tokenizer=self.tokenizer, eos_ids=self.eos_ids)
        except ValueError as error:
            raise self._error(str(error)) from None

    async def _request(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> RawCompletion:
        raw = await self._generate(tokens, sampling, limit)
        self._weights = self._weights or raw.weights
        if raw.weights != self._weights:
            raise self._error(f"its weights changed from {self._weights!r} to {raw.weights!r} meanwhile; ask again")
        return raw

    async def _generate(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> RawCompletion:
        pauses = iter(PAUSES)
        model = {"tokenizer": self.tokenizer, "eos_ids": self.eos_ids}
        while True:
            try:
                return await generate(self.server.api, self._client, tokens, sampling, limit=limit, **model)
            except MALFORMED as error:
                raise self._error(f"an answer that cannot be used ({type(error).__name__}: {error})") from None
            except UnavailableError as error:
                pause = next(pauses, None)
                if pause is None:
                    raise self._error(f"{error}, {len(PAUSES) + 1} times in {sum(PAUSES):g} seconds") from None
                await asyncio.sleep(pause)
            except TimedOutError as error:
                raise self._error(f"{error}; ask with fewer --slots") from None
            except HttpClientError as error:
                raise self._error(str(error)) from None

    def _error(self, problem: str) -> SleuthError:
        return SleuthError(f"--engine {self.server.url}: {problem}")
