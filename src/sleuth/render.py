"""Encoding of text to token segments and incremental decoding; nothing else in the package encodes text for a model.

Text of people and environments is encoded here, piece by piece, once. Sampled tokens are never encoded again, only
decoded, token by token, for stop strings and streams.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from sleuth.host.model_path import require_model, require_plain
from sleuth.types import Piece, Segment, SleuthError

UNFINISHED = "\ufffd"
"""What a tokenizer returns for the first bytes of an incomplete character."""

CHARACTER_TOKENS = 3
"""A character has at most four bytes, so an incomplete one spans at most three tokens."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Without one of these, transformers may silently create an empty tokenizer."""

MOST_GROWTH = 64
"""How many times as long a tokenizer may make a text; three bytes for a space are usual."""
SPLIT_SECONDS = 0.3
PROBES = tuple((text * 64)[:64] for text in ("a", "A", "1", " ", "\n", ".", "a ", "aA1. "))
"""Texts on which expressions with nested quantifiers take for ever, and those of published tokenizers microseconds."""

NO_MATCH = "(?!)"
"""A regular expression that never matches."""

Spelling = Literal["template", "env", "quoted"]
"""Which names in a text are tokens: all, all but control tokens, or none."""

CACHED_PROMPTS = 64
"""Episodes of a group start one after the other with the same prompt."""


class Renderer:
    """Encodes pieces of text as segments of tokens.

    In pieces with author `env`, questions included, the name of a control token is encoded as ordinary text and never
    as that token. In those that are `quoted`, so are the names of all added tokens and the `tags` of the dialect: a
    passage cannot close its block or begin a turn. A tag of several tokens is then encoded character by character.
    Templates, sources and teachers may use all of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tags: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._quoting = _without_added_tokens(tokenizer)
        added = {str(token): token.special for token in tokenizer.added_tokens_decoder.values()}
        self._controls = _one_of(name for name, special in added.items() if special)
        self._tags = _one_of(tag for tag in tags if tag not in added)
        self._names = _one_of({*added, *tags})
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
            tokens = [token for token, _, _ in self._encoded(piece.text, "quoted" if piece.quoted else "env")]
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
        first_of = _first_of_filling(pieces)
        tokens, owners, start = [], [], 0
        for span, kind in self._spans(pieces):
            for token, first, last in self._encoded(span, kind):
                spanned = piece_at[start + first : start + max(last, first + 1)] or piece_at[-1:]
                tokens.append(token)
                owners.append(next((index for index in spanned if pieces[index].author != "template"), spanned[0]))
            start += len(span)
        decoder, segments = IncrementalDecoder(self.tokenizer), list[Segment]()
        for owner, run in groupby(zip(owners, tokens, strict=True), key=lambda entry: first_of[entry[0]]):
            own = tuple(token for _, token in run)
            segments.append(Segment(author=pieces[owner].author, tokens=own, text=decoder.extend(own)))
        return [*segments[:-1], *(replace(last, text=last.text + decoder.flush()) for last in segments[-1:])]

    def _spans(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, Spelling]]:
        """Yields the prompt's text as (text, how to encode the names in it): as one span if every name in it may be the
        token, otherwise split at those that may."""
        whole = "".join(piece.text for piece in pieces)
        parts = [part for piece in pieces for part in self._split_at_names(piece)]
        if self._names.findall(whole) == [text for text, is_name in parts if is_name]:
            yield whole, "template"
            return
        for is_name, run in groupby(parts, key=lambda part: part[1]):
            texts = [text for text, _ in run]
            if is_name:
                for text in texts:
                    yield text, "template"
            elif text := "".join(texts):
                yield text, "quoted"

    def _split_at_names(self, piece: Piece) -> Iterator[tuple[str, bool]]:
        """Yields the piece's text as (text, whether it is a name that may be its token)."""
        if piece.quoted:
            yield piece.text, False
            return
        for at, part in enumerate(self._names.split(piece.text)):  # every second part is a name
            if part:
                yield part, bool(at % 2) and (piece.author == "template" or not self._controls.fullmatch(part))

    def _encoded(self, text: str, spelling: Spelling) -> Iterator[tuple[int, int, int]]:
        """Yields (token, first character, end) of a text."""
        if spelling == "quoted" and self._tags.search(text):
            found = list(self._spelled_out(text))
            if decode(self.tokenizer, [token for token, _, _ in found]) == text:  # not all tokenizers can do this
                yield from found
                return
        encoder = {"template": self.tokenizer.backend_tokenizer, "env": self._plain, "quoted": self._quoting}[spelling]
        encoding = encoder.encode(text, add_special_tokens=False)
        for token, (first, end) in zip(encoding.ids, encoding.offsets, strict=True):
            yield token, first, end

    def _spelled_out(self, text: str) -> Iterator[tuple[int, int, int]]:
        """As `_encoded`, with each tag character by character."""
        start = 0
        for at, part in enumerate(self._tags.split(text)):
            for piece in part if at % 2 else [part]:
                encoding = self._quoting.encode(piece, add_special_tokens=False)
                for token, (first, end) in zip(encoding.ids, encoding.offsets, strict=True):
                    yield token, start + first, start + end
                start += len(piece)


def _one_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches each name, the longest first, as a group."""
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or NO_MATCH})")


def _without_added_tokens(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer as it would be if no token had been added."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["added_tokens"] = [token | {"special": True} for token in state["added_tokens"]]
    plain = Tokenizer.from_str(json.dumps(state))
    plain.encode_special_tokens = True
    return plain


def _first_of_filling(pieces: Sequence[Piece]) -> list[int]:
    """For each piece its own index, or for one of several `env` pieces in a row that of the first: a question may come
    in parts, and is one segment."""
    first: list[int] = []
    for index, piece in enumerate(pieces):
        continues = index > 0 and piece.author == "env" == pieces[index - 1].author
        first.append(first[-1] if continues else index)
    return first


def _is_encoded_separately(piece: Piece) -> bool:
    return piece.budget is not None or piece.tokens is not None


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

    def extend(self, tokens: Sequence[int]) -> str:
        """The text that several tokens complete, decoded at once where their last character is whole."""
        text = self._decode([*self._pending, *tokens])
        if text.endswith(UNFINISHED):
            return "".join(map(self.push, tokens))
        self._settle([*self._pending, *tokens][-CHARACTER_TOKENS:])
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
    require_plain(path)
    if Path(path).is_dir() and not any((Path(path) / name).exists() for name in TOKENIZER_FILES):
        _refuse_run_folder(Path(path))
        raise SleuthError(f"{path}: no tokenizer there: {TOKENIZER_FILES[0]} is expected beside the weights")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # what transformers and tokenizers raise depends on the file
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{path}: no tokenizer could be loaded from this folder or hub id: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SleuthError(f"{path}: {type(tokenizer).__name__} is not a fast tokenizer: save it with a tokenizer.json")
    _require_bounded(path, tokenizer.backend_tokenizer)
    return tokenizer


def _require_bounded(path: str, tokenizer: Tokenizer) -> None:
    """Raises SleuthError if the tokenizer lengthens text many times over, or splits it by an expression that takes for
    ever. Without padding or cutting to a length of its own: 10^9 tokens of padding would fill the memory."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    splits = False
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        _add_steps(
            json.loads(step.__getstate__()) if (step := getattr(tokenizer, part)) is not None else {}, found := []
        )
        splits = splits or any("Regex" in pattern for pattern, _ in found)
        growth = prod(max(1, len(content) // max(1, len(pattern.get("String", "?")))) for pattern, content in found)
        if growth > MOST_GROWTH:
            raise SleuthError(f"{path}: the {part} of its tokenizer.json makes a text {growth:,} times as long")
    began = time.process_time()
    if splits and (_panics(tokenizer) or time.process_time() - began > SPLIT_SECONDS):
        raise SleuthError(
            f"{path}: an expression of its tokenizer.json takes more than {SPLIT_SECONDS} s to split {len(PROBES[0])} "
            "characters"
        )


def _panics(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer gives up on a probe, of which it prints forty lines that nobody can read."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        for probe in PROBES:
            tokenizer.encode(probe, add_special_tokens=False)
    except BaseException as error:  # Rust's are no Exception
        if type(error).__name__ != "PanicException":
            raise
        return True
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
    return False


def _add_steps(step: object, found: list[tuple[dict[str, str], str]]) -> None:
    """Adds (pattern, content that replaces it) of all steps within one."""
    if isinstance(step, dict):
        if isinstance(pattern := step.get("pattern"), dict):
            found.append((pattern, str(step.get("content", ""))))
        for inner in step.values():
            _add_steps(inner, found)
    elif isinstance(step, list):
        for inner in step:
            _add_steps(inner, found)


def _refuse_run_folder(folder: Path) -> None:
    """Raises SleuthError with the last checkpoint if `folder` is a run folder."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        return
    if (last := max(checkpoints.glob("step-" + "[0-9]" * 6), default=None)) is None:
        raise SleuthError(f"{folder}: a run folder, not a model, and it has no checkpoint yet; give a model folder")
    raise SleuthError(f"{folder}: a run folder, not a model; give one of its checkpoints; the last is {last}")


def find_eos_ids(config: GenerationConfig | None, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The end-of-text tokens of a model's generation config and of the tokenizer. Raises SleuthError if that config has
    anything but numbers there."""
    configured = config.eos_token_id if config is not None else None
    eos_ids = configured if isinstance(configured, list) else [configured]
    try:
        return frozenset(int(token) for token in [*eos_ids, tokenizer.eos_token_id] if token is not None)
    except (ValueError, TypeError):
        raise SleuthError(
            f"eos_token_id = {configured!r} of the generation config: should be a token's number"
        ) from None


class StopScanner:
    """Finds the first complete stop string in the streamed text of one completion, also across pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self._longest_stop = max(map(len, self.stops), default=1) - 1
        self._tail = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The part of `piece` that belongs to the completion, and whether a stop string ends it."""
        text = self._tail + piece
        end = stop_end(text, self.stops)
        if end is not None:
            return text[len(self._tail) : end], True
        self._tail = text[-self._longest_stop :] if self._longest_stop else ""
        return piece, False


def stop_end(text: str, stops: Sequence[str]) -> int | None:
    """The end position in `text` of the stop string that completes first, or None."""
    return min((at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0), default=None)
