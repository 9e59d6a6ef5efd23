"""A scripted engine, for trials of an environment and for tests: a function returns the text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.render import IncrementalDecoder, StopScanner, decode, encode
from sleuth.types import Chunk, Completion, Sampling


class ScriptedEngine:
    """Generates the tokens of `answer(text so far, sampling)`, up to the first stop string or the token budget.

    Log-probabilities and policy version are None, as nothing is sampled. The stop is "eos" at the tokenizer's
    end-of-text token and at the end of the script.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, answer: Callable[[str, Sampling], str]) -> None:
        self.tokenizer = tokenizer
        self.answer = answer

    def sleep(self) -> None:
        """Does nothing: there is no memory to free."""

    async def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens` by the script, in one chunk."""
        whole = await self.complete(tokens, sampling)
        yield Chunk(tokens=whole.tokens, logprobs=None, text=whole.text, stop=whole.stop)

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """Continue `tokens` by the script."""
        script = encode(self.tokenizer, self.answer(decode(self.tokenizer, tokens), sampling))
        decoder, scanner = IncrementalDecoder(self.tokenizer, context=tokens), StopScanner(sampling.stops)
        text = ""
        for count, token in enumerate(script[: sampling.max_tokens], start=1):
            if token == self.tokenizer.eos_token_id:
                text += decoder.flush()
                return Completion(tokens=tuple(script[:count]), logprobs=None, text=text, stop="eos")
            piece, stopped = scanner.feed(decoder.push(token))
            text += piece
            if stopped:
                return Completion(tokens=tuple(script[:count]), logprobs=None, text=text, stop="stop")
        kept = script[: sampling.max_tokens]
        stop = "eos" if len(kept) == len(script) else "length"
        return Completion(tokens=tuple(kept), logprobs=None, text=text + decoder.flush(), stop=stop)
