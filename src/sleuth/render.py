"""From text to token segments and back: the only encoder of the house.

Text that people or environments wrote is encoded here, one piece at a time, once. Sampled tokens are never encoded
again; they are only decoded, token by token, for stop strings and for streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sleuth.model_path import require_model
from sleuth.runs.checkpoints import latest_checkpoint
from sleuth.types import Author, Piece, Segment, SleuthError

UNFINISHED = "\ufffd"
"""What a tokenizer decodes the first bytes of an unfinished character to."""

CHARACTER_TOKENS = 3
"""A character has at most four bytes, so at most three tokens can hold an unfinished one."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Where there is none of these, transformers may make an empty tokenizer without a word."""

NOTHING = "(?!)"
"""A regular expression that matches nowhere."""

CACHED_PROMPTS = 64
"""The siblings of a group open one after the other with the same prompt."""


class Renderer:
    """Turns pieces of text into segments of tokens with `tokenizer`.

    What the environment says, a question too, is plain text: the name of a control token in it is written out in
    letters and never becomes that token. Templates, sources and teachers may use control tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        controls = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted(controls, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, longest_first)) or NOTHING})")
        self._cached_prompt = lru_cache(maxsize=CACHED_PROMPTS)(self._prompt)

    def render_all(self, pieces: Sequence[Piece]) -> list[Segment]:
        """A reply as segments. All from its first template piece to its last is a prompt: one text, encoded as one, so
        that no seam between a template and what fills it shows in the tokens. Every other piece is encoded by itself,
        and so is one with a budget or with tokens of its own: it divides a prompt in two.
        """
        templates = [at for at, piece in enumerate(pieces) if piece.author == "template"]
        if not templates:
            return [self.render(piece) for piece in pieces]
        begin, end = templates[0], templates[-1] + 1
        segments = [self.render(piece) for piece in pieces[:begin]]
        for apart, run in groupby(pieces[begin:end], key=_is_apart):
            together = tuple(run)
            segments += map(self.render, together) if apart else self._cached_prompt(together)
        return segments + [self.render(piece) for piece in pieces[end:]]

    def render(self, piece: Piece) -> Segment:
        """The piece as n tokens, n <= `piece.budget`; special tokens are never added.

        What is over the budget is cut from the end, counted in `cut`, and missing from `text`: text is what a model
        saw.
        """
        if piece.tokens is not None:
            tokens = list(piece.tokens)
        elif piece.author == "env":
            tokens = self._plain.encode(piece.text, add_special_tokens=False).ids
        else:
            tokens = encode(self.tokenizer, piece.text)
        cut = 0 if piece.budget is None else max(0, len(tokens) - piece.budget)
        if not cut:
            return Segment(author=piece.author, tokens=tuple(tokens), text=piece.text)
        kept = tokens[: piece.budget]
        return Segment(author=piece.author, tokens=tuple(kept), text=decode(self.tokenizer, kept), cut=cut)

    def _prompt(self, pieces: Sequence[Piece]) -> list[Segment]:
        """A template and what fills it, encoded together. A token on a seam belongs to what fills the template."""
        piece_at = [index for index, piece in enumerate(pieces) for _ in piece.text]  # by character
        tokens, owners, start = [], [], 0
        for stretch, may_control in self._stretches(pieces):
            encoder = self.tokenizer.backend_tokenizer if may_control else self._plain
            encoding = encoder.encode(stretch, add_special_tokens=False)
            for token, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
                spanned = piece_at[start + first : start + max(last, first + 1)] or piece_at[-1:]
                tokens.append(token)
                owners.append(next((index for index in spanned if pieces[index].author != "template"), spanned[0]))
            start += len(stretch)
        decoder = IncrementalDecoder(self.tokenizer)
        texts = [decoder.push(token) for token in tokens]
        texts[-1:] = [text + decoder.flush() for text in texts[-1:]]
        written = groupby(zip(owners, tokens, texts, strict=True), key=lambda entry: entry[0])
        return [_segment(pieces[owner].author, list(entries)) for owner, entries in written]

    def _stretches(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, bool]]:
        """The text of a prompt in (text, whether control tokens in it are meant): in one go if only the template names
        any, otherwise cut at those of the template."""
        whole = "".join(piece.text for piece in pieces)
        named = [name for piece in pieces if piece.author == "template" for name in self._controls.findall(piece.text)]
        if self._controls.findall(whole) == named:
            yield whole, True
            return
        text = ""
        for piece in pieces:
            parts = self._controls.split(piece.text) if piece.author == "template" else [piece.text]
            for at, part in enumerate(parts):  # every second part is a control token
                if at % 2:
                    yield from ((text, False), (part, True))
                    text = ""
                else:
                    text += part
        yield text, False


def _is_apart(piece: Piece) -> bool:
    return piece.budget is not None or piece.tokens is not None


def _segment(author: Author, entries: Sequence[tuple[int, int, str]]) -> Segment:
    """(piece, token, text) of neighbouring tokens as one segment."""
    _, tokens, texts = zip(*entries, strict=True)
    return Segment(author=author, tokens=tokens, text="".join(texts))


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
            if settled + decode(self.tokenizer, tail) == text:  # by itself: the text before could lend it a byte
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
    require_model(path)
    if Path(path).is_dir() and not any((Path(path) / name).exists() for name in TOKENIZER_FILES):
        _require_no_run(Path(path))
        raise SleuthError(f"{path}: no tokenizer there: {TOKENIZER_FILES[0]} is expected beside the weights")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:  # what transformers raises depends on the file
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no tokenizer could be loaded from this folder or hub id: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SleuthError(f"{path}: {type(tokenizer).__name__} is not a fast tokenizer: save it with a tokenizer.json")
    return tokenizer


def _require_no_run(folder: Path) -> None:
    """Models lie in a run's folder, and it is none itself."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        return
    if (last := latest_checkpoint(checkpoints)) is None:
        raise SleuthError(f"{folder}: a run and not a model, and it has saved no checkpoint yet; name a model's folder")
    raise SleuthError(f"{folder}: a run and not a model; name one of its checkpoints, of which the last is {last}")
