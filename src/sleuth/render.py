"""From text to token segments and back: the only encoder of the house.

Text that people or environments wrote is encoded here, one piece at a time, once. Sampled tokens are never encoded
again; they are only decoded, token by token, for stop strings and for streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sleuth.types import Piece, Segment, SleuthError

UNFINISHED = "\ufffd"
"""What a tokenizer decodes the first bytes of an unfinished character to."""

CHARACTER_TOKENS = 3
"""A character has at most four bytes, so at most three tokens can hold an unfinished one."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Where there is none of these, transformers may make an empty tokenizer without a word."""


class Renderer:
    """Turns pieces of text into segments of tokens with `tokenizer`.

    What the environment says is plain text: the name of a control token in a passage is written out in letters and
    never becomes that token. Templates, sources and teachers may use control tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True

    def render(self, piece: Piece) -> Segment:
        """The piece as n tokens, n <= `piece.budget`; special tokens are never added.

        What is over the budget is cut from the end, counted in `cut`, and missing from `text`: text is what a model
        saw.
        """
        if piece.author == "env":
            tokens = self._plain.encode(piece.text, add_special_tokens=False).ids
        else:
            tokens = encode(self.tokenizer, piece.text)
        cut = 0 if piece.budget is None else max(0, len(tokens) - piece.budget)
        if not cut:
            return Segment(author=piece.author, tokens=tuple(tokens), text=piece.text)
        kept = tokens[: piece.budget]
        return Segment(author=piece.author, tokens=tuple(kept), text=decode(self.tokenizer, kept), cut=cut)


class IncrementalDecoder:
    """Decodes a run of tokens one at a time; what it has returned so far is always settled.

    The pieces of `push` and the rest from `flush` laid end to end are the text of the whole run. Only the last few
    tokens are decoded again at each push, so that a token costs the same however long the run is. An unfinished
    character is held back until its last byte is there. `context` are the tokens before the run, if there are any: some
    tokenizers drop the space at the beginning of a text, and a run that continues a text must keep it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, context: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._settle(list(context[-CHARACTER_TOKENS:]))
        if self._context_text.endswith(UNFINISHED):  # the text before ends inside a character: not ours to finish
            self._settle([])

    def push(self, token: int) -> str:
        """The text that `token` finished, which may be empty."""
        self._pending.append(token)
        text = self._decode(self._pending)
        if text.endswith(UNFINISHED):
            return self._push_settled_part(text) if len(self._pending) > CHARACTER_TOKENS else ""
        self._settle(self._pending)
        return text

    def flush(self) -> str:
        """What was held back, at the end of the run."""
        text = self._decode(self._pending) if self._pending else ""
        self._settle(self._pending or self._context)
        return text

    def _push_settled_part(self, text: str) -> str:
        """Bytes that make no character would be held for ever: let go of those that nothing can change any more.

        Where both sides decode by themselves to what they decode to together, no character spans the cut.
        """
        for cut in range(len(self._pending) - 1, 0, -1):
            head, tail = self._pending[:cut], self._pending[cut:]
            settled = self._decode(head)
            if settled + self._decode(tail) == text:
                self._settle(head)
                self._pending = tail
                return settled
        return ""

    def _decode(self, tokens: list[int]) -> str:
        return decode(self.tokenizer, self._context + tokens)[len(self._context_text) :]

    def _settle(self, tokens: list[int]) -> None:
        self._context = tokens
        self._context_text = decode(self.tokenizer, tokens) if tokens else ""
        self._pending: list[int] = []


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The tokens of `text` alone: nothing is added before or after."""
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def decode(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """The text of `tokens` as it is, special tokens included: no space is tidied away."""
    return tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=False)


def check_writable(tokenizer: PreTrainedTokenizerFast, strings: Iterable[str]) -> None:
    """Raise `SleuthError` if the tokenizer cannot write one of `strings` (a dialect's tags) and read it back."""
    for string in strings:
        tokens = encode(tokenizer, string)
        text = decode(tokenizer, tokens)
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens:
            raise SleuthError(f"the tokenizer has no token for a part of {string!r}: use a tokenizer that can write it")
        if text != string:
            raise SleuthError(f"the tokenizer reads {string!r} back as {text!r}: use a tokenizer that can write it")


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder or hub id; never runs code that comes with it."""
    if not Path(path).exists() and (path.startswith(("/", ".", "~")) or path.count("/") != 1):
        raise SleuthError(f"{path}: no such folder, and a hub id would read OWNER/NAME")
    if Path(path).is_dir() and not any((Path(path) / name).exists() for name in TOKENIZER_FILES):
        raise SleuthError(f"{path}: no tokenizer there: {TOKENIZER_FILES[0]} is expected beside the weights")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:  # what transformers raises depends on the file
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no tokenizer could be loaded from this folder or hub id: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SleuthError(f"{path}: {type(tokenizer).__name__} is not a fast tokenizer: save it with a tokenizer.json")
    return tokenizer
