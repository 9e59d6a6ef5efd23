"""Encoding of text to token segments and incremental decoding; nothing else in the package encodes text for a model.

Text of people and environments is encoded here, piece by piece, once. Sampled tokens are never encoded again, only
decoded, token by token, for stop strings and streams.
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
"""What a tokenizer returns for the first bytes of an incomplete character."""

CHARACTER_TOKENS = 3
"""A character has at most four bytes, so an incomplete one spans at most three tokens."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of these, transformers may silently create an empty tokenizer."""

NO_MATCH = "(?!)"
"""A regular expression that never matches."""

CACHED_PROMPTS = 64
"""Episodes of a group start one after the other with the same prompt."""


class Renderer:
    """Encodes pieces of text as segments of tokens.

    In pieces with author `env`, questions included, the name of a control token is encoded as ordinary text and never
    as that token. Templates, sources and teachers may use control tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        controls = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted(controls, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, longest_first)) or NO_MATCH})")
        self._cached_prompt = lru_cache(maxsize=CACHED_PROMPTS)(self._prompt)

    def render_all(self, pieces: Sequence[Piece]) -> list[Segment]:
        """The segments of a reply.

        Everything from the first template piece to the last is a prompt and encoded as one text, so that the tokens do
        not depend on where the template was filled. A piece with a budget or its own tokens, and every piece outside of
        the prompt, is encoded separately.
        """
        templates = [at for at, piece in enumerate(pieces) if piece.author == "template"]
        if not templates:
            return [self.render(piece) for piece in pieces]
        begin, end = templates[0], templates[-1] + 1
        segments = [self.render(piece) for piece in pieces[:begin]]
        for separate, run in groupby(pieces[begin:end], key=_is_encoded_separately):
            group = tuple(run)
            segments += map(self.render, group) if separate else self._cached_prompt(group)
        return segments + [self.render(piece) for piece in pieces[end:]]

    def render(self, piece: Piece) -> Segment:
        """The segment of one piece, of at most `piece.budget` tokens; adds no special tokens.

        Tokens over the budget are cut from the end, counted in `cut`, and missing from `text`: text is what the model
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
        """The segments of a template and its fillings, encoded as one text. A token across a boundary belongs to the
        filling."""
        piece_at = [index for index, piece in enumerate(pieces) for _ in piece.text]  # by character
        tokens, owners, start = [], [], 0
        for span, may_control in self._spans(pieces):
            encoder = self.tokenizer.backend_tokenizer if may_control else self._plain
            encoding = encoder.encode(span, add_special_tokens=False)
            for token, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
                spanned = piece_at[start + first : start + max(last, first + 1)] or piece_at[-1:]
                tokens.append(token)
                owners.append(next((index for index in spanned if pieces[index].author != "template"), spanned[0]))
            start += len(span)
        decoder = IncrementalDecoder(self.tokenizer)
        texts = [decoder.push(token) for token in tokens]
        texts[-1:] = [text + decoder.flush() for text in texts[-1:]]
        written = groupby(zip(owners, tokens, texts, strict=True), key=lambda entry: entry[0])
        return [_segment(pieces[owner].author, list(entries)) for owner, entries in written]

    def _spans(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, bool]]:
        """Yields the prompt's text as (text, whether to encode control tokens in it as such): as one span if only the
        template names any, otherwise split at the template's control tokens."""
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


def _is_encoded_separately(piece: Piece) -> bool:
    return piece.budget is not None or piece.tokens is not None


def _segment(author: Author, entries: Sequence[tuple[int, int, str]]) -> Segment:
    """One segment of adjacent tokens, given as (piece, token, text)."""
    _, tokens, texts = zip(*entries, strict=True)
    return Segment(author=author, tokens=tokens, text="".join(texts))


class IncrementalDecoder:
    """Decodes tokens one at a time; text that it has returned never changes.

    The results of `push` and `flush` concatenate to the text of all tokens. Each push decodes only the last few tokens,
    so the cost per token is constant. An incomplete character is held back until its last byte. `context` are the
    preceding tokens, if any: some tokenizers drop a leading space, which must stay if the text continues another.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, context: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._settle(list(context[-CHARACTER_TOKENS:]))
        if self._context_text.endswith(UNFINISHED):  # do not complete a character that the context began
            self._settle([])

    def push(self, token: int) -> str:
        """The text that `token` completes, which may be empty."""
        self._pending.append(token)
        text = self._decode(self._pending)
        if text.endswith(UNFINISHED):
            return self._push_settled_part(text) if len(self._pending) > CHARACTER_TOKENS else ""
        self._settle(self._pending)
        return text

    def flush(self) -> str:
        """The text still held back, after the last token."""
        text = self._decode(self._pending) if self._pending else ""
        self._settle(self._pending or self._context)
        return text

    def _push_settled_part(self, text: str) -> str:
        """The part of `text` that no later token can change; without this, invalid bytes would be held back for ever.

        If both sides of a cut decode separately to what they decode to together, no character spans the cut.
        """
        for cut in range(len(self._pending) - 1, 0, -1):
            head, tail = self._pending[:cut], self._pending[cut:]
            settled = self._decode(head)
            if settled + decode(self.tokenizer, tail) == text:  # without context, which could add a byte to the tail
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
    """The token ids of `text`; adds no special tokens."""
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def decode(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """The exact text of `tokens`, special tokens included, without clean-up of spaces."""
    return tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=False)


def check_writable(tokenizer: PreTrainedTokenizerFast, strings: Iterable[str]) -> None:
    """Raises `SleuthError` if one of `strings` (a dialect's tags) does not survive encoding and decoding."""
    for string in strings:
        tokens = encode(tokenizer, string)
        text = decode(tokenizer, tokens)
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens:
            raise SleuthError(f"the tokenizer has no token for a part of {string!r}: use a tokenizer that can write it")
        if text != string:
            raise SleuthError(f"the tokenizer reads {string!r} back as {text!r}: use a tokenizer that can write it")


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder or hub id. Never runs code from there. Raises SleuthError if there is none."""
    require_model(path)
    if Path(path).is_dir() and not any((Path(path) / name).exists() for name in TOKENIZER_FILES):
        _refuse_run_folder(Path(path))
        raise SleuthError(f"{path}: no tokenizer there: {TOKENIZER_FILES[0]} is expected beside the weights")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:  # what transformers raises depends on the file
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no tokenizer could be loaded from this folder or hub id: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SleuthError(f"{path}: {type(tokenizer).__name__} is not a fast tokenizer: save it with a tokenizer.json")
    return tokenizer


def _refuse_run_folder(folder: Path) -> None:
    """Raises SleuthError with the last checkpoint if `folder` is a run folder."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        return
    if (last := latest_checkpoint(checkpoints)) is None:
        raise SleuthError(f"{folder}: a run folder, not a model, and it has no checkpoint yet; give a model folder")
    raise SleuthError(f"{folder}: a run folder, not a model; give one of its checkpoints; the last is {last}")
