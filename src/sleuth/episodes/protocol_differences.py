"""The fields in which two protocols differ, with both values."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from pydantic import BaseModel

from sleuth.dialect import Tags
from sleuth.episodes.protocol import ProtocolCard, RewardPart, RewardSpec
from sleuth.host.escapes import one_line
from sleuth.types import RetrieverIdentity

LONGEST = 60
"""Characters. Of longer texts, an excerpt around the first difference is shown."""
BEFORE, AFTER = 20, 30
"""Characters of the excerpt before and after the first difference."""
DIGITS = 12
"""Digits of a hash that are shown."""


Difference = tuple[str, Any, Any]
"""A field and both values: `("dialect.searches", 3, 4)`. Of one part of a reward, its kind is in the field."""


def differences(a: ProtocolCard, b: ProtocolCard, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """A line for every field that differs, in the order of the card: `dialect.searches: A 3, B 4`.

    A long text is shown where it first differs, with the white space visible.
    """
    return [_line(difference, names) for difference in _differing("", a, b) if not _is_implied(difference[0], a, b)]


def reward_differences(a: RewardSpec, b: RewardSpec, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """The same for two rewards."""
    return [_line(difference, names) for difference in _differing("reward", a, b)]


def visible(text: str) -> str:
    """The text in backquotes; white space that could be missed is written out: `\\n`, and a dot for a space."""
    if not text:
        return "nothing"
    dotted = re.sub("^ +| +$|  +", lambda spaces: "·" * len(spaces.group()), text, flags=re.MULTILINE)
    return f"`{one_line(dotted)}`"


# -- what differs ----------------------------------------------------------------------------------------------------


def _differing(field: str, a: Any, b: Any) -> Iterator[Difference]:
    if field == "reward.parts":  # matched by kind, not by position
        parts_a, parts_b = _by_kind(a), _by_kind(b)
        for kind in parts_a | parts_b:
            yield from _differing(f"reward.{kind}", parts_a.get(kind), parts_b.get(kind))
        orders = tuple(filter(parts_b.get, parts_a)), tuple(filter(parts_a.get, parts_b))
        if orders[0] != orders[1]:
            yield field, *orders
    elif isinstance(a, RetrieverIdentity) and isinstance(b, RetrieverIdentity) and a.kind != b.kind:
        yield field, a, b
    elif _is_record(a) and type(a) is type(b):
        for name in _fields(a):
            yield from _differing(f"{field}.{name}" if field else name, getattr(a, name), getattr(b, name))
    elif a != b:
        yield field, a, b


def _by_kind(parts: Sequence[RewardPart]) -> dict[str, RewardPart]:
    """`answer`; a second part of the kind is `answer 2`."""
    seen: Counter[str] = Counter()
    named = {}
    for part in parts:
        seen[part.kind] += 1
        named[part.kind if seen[part.kind] == 1 else f"{part.kind} {seen[part.kind]}"] = part
    return named


def _is_implied(field: str, a: ProtocolCard, b: ProtocolCard) -> bool:
    """Whether another difference implies this one: a changed prompt text implies a changed hash, and having searched no
    corpus implies having had no retriever."""
    if field == "retriever" and a.corpus_sha256 != b.corpus_sha256:
        return any(card.retriever is None and card.corpus_sha256 is None for card in (a, b))
    return field == "prompt_sha256" and a.prompt_text != b.prompt_text


def _is_record(value: Any) -> bool:
    return isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, Tags))


def _fields(record: Any) -> list[str]:
    if isinstance(record, BaseModel):
        return list(type(record).model_fields)
    return [field.name for field in dataclasses.fields(record)]


# -- as shown --------------------------------------------------------------------------------------------------------


def _line(difference: Difference, names: tuple[str, str]) -> str:
    """Both values as shown, never equal, and the position of the first difference of long texts."""
    (field, a, b), where = difference, ""
    if field.endswith("sha256"):
        shown = ["none" if value is None else str(value)[:DIGITS] for value in (a, b)]
    elif field.endswith(".sources"):
        shown = [_changed_files(a, b), _changed_files(b, a)]
    elif isinstance(a, str) and isinstance(b, str) and max(len(a), len(b)) > LONGEST:
        at = len([*takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))])
        begin, end = max(0, at - BEFORE), at + AFTER
        shown = ["..." * (begin > 0) + text[begin:end] + "..." * (end < len(text)) for text in (a, b)]
        shown, before = list(map(visible, shown)), a[:at].split("\n")
        where = f" (they first differ in line {len(before)}, character {len(before[-1]) + 1})"
    else:
        shown = [_shown(a), _shown(b)]
    if shown[0] == shown[1]:
        shown = [repr(a), repr(b)]
    return f"{field}: {names[0]} {shown[0]}, {names[1]} {shown[1]}{where}"


def _changed_files(files: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The files whose hash is not that of the others: `my_rewards.py (5f1c02ab93de)`."""
    changed = sorted(files.items() - others.items())
    return ", ".join(f"{name} ({str(sha256)[:DIGITS]})" for name, sha256 in changed) or "none of them"


def _shown(value: Any) -> str:
    match value:
        case str():
            return visible(value)
        case Tags(open=opening, close=closing):
            paired = closing == f"</{opening.removeprefix('<')}"
            return visible(opening) if paired else f"{visible(opening)} and {visible(closing)}"
        case tuple():
            return " and ".join(map(_shown, value)) or "nothing"
        case dict():
            return ", ".join(f"{name} = {_shown(one)}" for name, one in value.items()) or "nothing"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case RetrieverIdentity():
            return str(value)
        case _ if _is_record(value):
            values = {name: getattr(value, name) for name in _fields(value)}
            return "(" + ", ".join(f"{name} {_shown(one)}" for name, one in values.items() if one != {}) + ")"
        case _:
            return str(value)
