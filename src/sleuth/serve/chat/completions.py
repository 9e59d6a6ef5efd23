"""`/v1/completions`: a text continued by the model alone, without its environment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from sleuth.render import encode
from sleuth.serve.chat.agent import Agent
from sleuth.serve.chat.answers import Head, usage
from sleuth.serve.chat.stream_parser import partial_match_length
from sleuth.serve.chat.wire import DEFAULT_TOKENS, CompletionRequest
from sleuth.serve.http.refused import TOO_LONG, Refused
from sleuth.types import Chunk, Sampling

MIN_LOGPROB = -9999.0
"""JSON has no infinity."""


class Continuation:
    """One request of `/v1/completions`: `chunks` generates; `full_body` and `stream` format the answer.

    The stop string that ends a text is not part of it.
    """

    def __init__(self, agent: Agent, body: CompletionRequest, key: tuple[int, ...]) -> None:
        self._agent = agent
        self._asked = body
        self._key = key
        self._stops = tuple(body.stop or ())
        self.prompt_tokens = 0

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The engine's output. Raises `Refused` for an unusable prompt."""
        prompt = self._tokens()
        room = self._agent.context - len(prompt)
        if room < 1:
            line = f"prompt: it has {len(prompt)} tokens and the context holds {self._agent.context}; send less"
            raise Refused(400, line, param="prompt", code=TOO_LONG)
        self.prompt_tokens = len(prompt)
        temperature = 1.0 if self._asked.temperature is None else self._asked.temperature
        limit = min(self._asked.max_tokens or DEFAULT_TOKENS, room)
        sampling = Sampling(max_tokens=limit, temperature=temperature, stops=self._stops, key=self._key)
        async with aclosing(self._agent.engine.stream(prompt, sampling)) as stream:
            async for chunk in stream:
                yield chunk

    def full_body(self, chunks: Sequence[Chunk], head: Head) -> dict[str, Any]:
        """The body of a finished completion."""
        text = self._before_stop("".join(chunk.text for chunk in chunks), chunks[-1])
        choice = _choice(text, self._logprobs(chunks, 0), chunks[-1])
        return head.with_choices(choice, usage=usage(self.prompt_tokens, _count(chunks)))

    async def stream(
        self, chunks: AsyncGenerator[Chunk, None], head: Head, *, with_usage: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a completion as it runs. Text that may be the beginning of a stop string is held back."""
        pending, offset, count = "", 0, 0
        async with aclosing(chunks):
            async for chunk in chunks:
                text = self._before_stop(pending + chunk.text, chunk)
                settled = len(text) - (0 if chunk.stop else partial_match_length(text, self._stops))
                yield head.with_choices(_choice(text[:settled], self._logprobs([chunk], offset), chunk))
                pending, offset, count = text[settled:], offset + len(chunk.text), count + len(chunk.tokens)
        if with_usage:
            yield head.with_choices(usage=usage(self.prompt_tokens, count))

    def _tokens(self) -> list[int]:
        """The prompt's tokens. Control tokens in a text are kept: the client has direct access to the model here."""
        prompt, tokenizer = self._asked.prompt, self._agent.renderer.tokenizer
        tokens = encode(tokenizer, prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise Refused(400, "prompt: it has no tokens to continue", param="prompt")
        if max(tokens) >= len(tokenizer):
            line = f"prompt: there is no token {max(tokens)}; the last is {len(tokenizer) - 1}"
            raise Refused(400, line, param="prompt")
        return tokens

    def _before_stop(self, text: str, last: Chunk) -> str:
        """The text without the stop string at its end, if there is one."""
        if last.stop != "stop":
            return text
        return text[: -max(len(stop) for stop in self._stops if text.endswith(stop))]

    def _logprobs(self, chunks: Sequence[Chunk], offset: int) -> dict[str, Any] | None:
        """The `logprobs` field of chunks whose text begins at `offset`."""
        if self._asked.logprobs is None:
            return None
        fields: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": None, "text_offset": []}
        for chunk in chunks:
            for at, logprob in enumerate(chunk.logprobs or ()):
                fields["tokens"].append("" if at else chunk.text)
                fields["token_logprobs"].append(max(logprob, MIN_LOGPROB))
                fields["text_offset"].append(offset)
            offset += len(chunk.text)
        return fields


def _choice(text: str, logprobs: dict[str, Any] | None, last: Chunk) -> dict[str, Any]:
    finish = {None: None, "stop": "stop", "eos": "stop", "length": "length"}[last.stop]
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _count(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.tokens) for chunk in chunks)
