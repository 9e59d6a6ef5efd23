"""The engine behind HTTP: a server that serves the checkpoint (SGLang, vLLM, or one that speaks likewise) writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from transformers import PreTrainedTokenizerFast

from sleuth.engines.request import Request, room_for
from sleuth.engines.server import Server, refusal
from sleuth.engines.stops import end_of_stop
from sleuth.engines.wire import Written
from sleuth.render import decode, encode
from sleuth.types import Chunk, Completion, Sampling, SleuthError

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 900.0  # for one turn, the wait for a place on the server included
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before another attempt
IDLE_SECONDS = 2.0  # a connection is kept; servers close theirs after five, at times when it is just asked again
TURNED_AWAY = (429, 503)


class HttpEngine:
    """Continues token sequences on `server`, at most `requests_at_once` side by side; use it in an `async with`.

    Token ids go out and, where the server tells them, token ids come back: then `text` and `stop` are read off the ids
    as the engine in this process reads them, and nothing that the server says of either counts. Where it gives text
    alone, the ids are encoded from it and there are no log-probabilities. A request is made again only if it found no
    server, or was turned away before anything was written; the rest is a SleuthError that names the server.
    """

    def __init__(
        self,
        server: Server,
        tokenizer: PreTrainedTokenizerFast,
        *,
        ends: Collection[int],
        requests_at_once: int,
        context: int,
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.ends = ends
        self.context = context
        self._seats = asyncio.Semaphore(requests_at_once)
        self._weights: str | None = None
        self._client = httpx.AsyncClient(
            base_url=server.url,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS),
            trust_env=False,
        )

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`, in one chunk. Closing the iterator early ends the request, and the server's work on it."""
        whole = await self.complete(tokens, sampling)
        yield Chunk(tokens=whole.tokens, logprobs=whole.logprobs, text=whole.text, stop=whole.stop)

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` until a stop."""
        limit = room_for(tokens, sampling, self.context)
        if limit < 1:
            return Completion(tokens=(), logprobs=(), text="", stop="length")
        async with self._seats:
            written = await self._ask(tokens, sampling, limit)
        if written.tokens is None:
            return _completion_of_text(written, sampling, self.tokenizer)
        return self._completion(written, tokens, sampling, limit)

    async def _ask(self, tokens: Sequence[int], sampling: Sampling, limit: int) -> Written:
        wire = self.server.wire
        response = await self._post(wire.path, wire.body(tokens, sampling, limit=limit, ends=self.ends))
        try:
            written = wire.read(response.json(), sampling)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise self._error(f"an answer that cannot be used ({type(error).__name__}: {error})") from None
        self._weights = self._weights or written.weights
        if written.weights != self._weights:
            raise self._error(f"its weights changed from {self._weights!r} to {written.weights!r} meanwhile; ask again")
        return written

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        pauses = iter(PAUSES)
        while True:
            try:
                response = await self._client.post(path, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                reason = f"does not answer ({str(error) or type(error).__name__})"
            except httpx.TimeoutException:
                raise self._error(f"wrote no turn within {ANSWER_SECONDS:g} seconds; ask with fewer --slots") from None
            except httpx.HTTPError as error:
                raise self._error(f"broke off while it wrote ({str(error) or type(error).__name__})") from None
            else:
                if response.status_code == httpx.codes.OK:
                    return response
                reason = refusal(response)
                if response.status_code not in TURNED_AWAY:
                    raise self._error(reason)
            pause = next(pauses, None)
            if pause is None:
                raise self._error(f"{reason}, {len(PAUSES) + 1} times in {sum(PAUSES):g} seconds")
            await asyncio.sleep(pause)

    def _completion(self, written: Written, prompt: Sequence[int], sampling: Sampling, limit: int) -> Completion:
        """What the ids amount to. Servers that write several tokens at once may leave some behind a stop."""
        tokens = np.array((written.tokens or ())[:limit], dtype=np.int64)
        logprobs = np.zeros(len(tokens)) if written.logprobs is None else np.array(written.logprobs[:limit])
        request = Request(prompt, sampling, limit=limit, tokenizer=self.tokenizer)
        for count in range(1 if self._overshot(tokens.tolist(), sampling) else len(tokens), len(tokens) + 1):
            request.look(tokens[:count], logprobs[:count], ends=self.ends, policy_version=None)
            if request.stop is not None:
                whole = request.inbox.get_nowait()
                assert isinstance(whole, Completion)
                return whole if written.logprobs is not None else replace(whole, logprobs=None)
        raise self._error(
            f"ended a turn ({written.ended}) after {len(tokens)} of {limit} tokens without a stop string or an end "
            "token: its context is too short, or it serves another tokenizer"
        )

    def _overshot(self, tokens: Sequence[int], sampling: Sampling) -> bool:
        """Whether the turn was over before the last token."""
        before = tokens[:-1]
        return (
            any(token in self.ends for token in before)
            or end_of_stop(decode(self.tokenizer, before), sampling.stops) is not None
        )

    def _error(self, problem: str) -> SleuthError:
        return SleuthError(f"--engine {self.server.url}: {problem}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()


def _completion_of_text(written: Written, sampling: Sampling, tokenizer: PreTrainedTokenizerFast) -> Completion:
    """What a server wrote that gives text alone, with ids that are encoded from it."""
    end = end_of_stop(written.text, sampling.stops)
    if end is not None:
        text, stop = written.text[:end], "stop"
    elif written.ended == "length":
        text, stop = written.text, "length"
    else:
        text, stop = written.text.removesuffix(str(tokenizer.eos_token)), "eos"
    tokens = encode(tokenizer, text)
    if stop == "eos" and isinstance(tokenizer.eos_token_id, int):
        tokens.append(tokenizer.eos_token_id)
    return Completion(tokens=tuple(tokens), logprobs=None, text=text, stop=stop)
