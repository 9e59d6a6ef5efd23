"""A teacher on a server: its log-probabilities of what the policy wrote."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.engines.remote.completions import MALFORMED
from sleuth.engines.remote.http_client import HttpClient, HttpClientError, RefusedError
from sleuth.engines.remote.server import PROBE_TEXT, Server, find_server
from sleuth.render import encode
from sleuth.types import PromptLogprobs, SleuthError

REQUESTS_AT_ONCE = 32
TRIES, PAUSE = 3, 1.0  # and seconds before the second, twice as many before the third
NONE_RETURNED = "returns no log-probabilities of given tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The tokens of a trajectory, of which those from the index `first` on are asked for."""

    tokens: tuple[int, ...]
    first: int


class ServedTeacher:
    """Asks a server for log-probabilities at temperature 1, and for the `top_k` likeliest tokens in each place."""

    def __init__(self, server: Server, *, top_k: int, seconds: float) -> None:
        self.server = server
        self.top_k = top_k
        self.failure = ""
        """Why the last answer is missing."""
        self._seconds = seconds

    def verdicts(self, wanted: Sequence[Wanted]) -> list[PromptLogprobs | None]:
        """Those of each; None where the server gave no usable answer, `TRIES` times."""
        return asyncio.run(self._ask_all(wanted))

    async def _ask_all(self, wanted: Sequence[Wanted]) -> list[PromptLogprobs | None]:
        client = HttpClient(self.server.url, seconds=self._seconds)
        gate = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def ask(one: Wanted) -> PromptLogprobs | None:
            async with gate:
                return await self._ask(client, one)

        return list(await asyncio.gather(*map(ask, wanted)))

    async def _ask(self, client: HttpClient, one: Wanted) -> PromptLogprobs | None:
        api = self.server.api
        body = api.scoring_body(one.tokens, first=one.first, top_k=self.top_k)
        for attempt in range(TRIES):
            await asyncio.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0)
            try:
                found = self._read(await client.post(api.path, body), one)
            except RefusedError as error:
                self.failure = str(error)
                return None
            except HttpClientError as error:
                self.failure = str(error)
            except MALFORMED as error:
                self.failure = f"an answer that cannot be used ({type(error).__name__}: {error})"
            else:
                if found is None:
                    self.failure = NONE_RETURNED
                return found
        return None

    def _read(self, answer: Any, one: Wanted) -> PromptLogprobs | None:
        """The parsed answer; None if there are no log-probabilities in it. Raises one of `MALFORMED` for another shape,
        other tokens than those that were sent, or numbers that are not finite."""
        scored = self.server.api.read_scores(answer, one.tokens, first=one.first, top_k=self.top_k)
        if scored is None:
            return None
        logprobs, top = scored
        if len(logprobs) != len(one.tokens) - one.first:
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(one.tokens) - one.first} tokens")
        if any(len(entries) < self.top_k for entries in top):
            raise ValueError(f"fewer than {self.top_k} likeliest tokens")
        if not all(map(math.isfinite, [*logprobs, *(logprob for entries in top for _, logprob in entries)])):
            raise ValueError("log-probabilities that are not finite")
        before = (0.0,) * one.first, ((),) * one.first
        return PromptLogprobs(logprobs=before[0] + tuple(logprobs), top=before[1] + tuple(top))


def find_teacher(
    url: str,
    model: str,
    *,
    tokenizer: PreTrainedTokenizerFast,
    eos_ids: frozenset[int],
    context: int,
    top_k: int,
    seconds: float,
) -> ServedTeacher:
    """The teacher at `url`, which must serve `model`, read the tokens of `tokenizer`, and return log-probabilities of
    given ones. Raises a one-line SleuthError."""
    server, _ = find_server(url, model, served_as=None, tokenizer=tokenizer, eos_ids=eos_ids, option="teacher.url:")
    if server.context is not None and server.context <= context:
        raise SleuthError(
            f"teacher.url: {server.url}: takes {server.context} tokens, and context = {context} needs one more; start "
            "it with a longer context, or lower context"
        )
    teacher = ServedTeacher(server, top_k=top_k, seconds=seconds)
    [found] = teacher.verdicts([Wanted(tokens=tuple(encode(tokenizer, PROBE_TEXT)), first=1)])
    if found is None:
        advice = " (vLLM: --max-logprobs)" if top_k else ""
        raise SleuthError(
            f"teacher.url: {server.url}: {teacher.failure}, which a teacher must; serve it with vLLM or SGLang{advice}"
        )
    return teacher
