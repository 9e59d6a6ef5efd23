"""The fields in which two protocols differ, with both values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from sleuth.episodes.protocol import ProtocolCard, RewardSpec
from sleuth.host.escapes import one_line

LONGEST = 60
"""Characters. Of longer texts, an excerpt around the first difference is shown."""
BEFORE, AFTER = 20, 30
"""Characters of the excerpt before and after the first difference."""
SHA256 = re.compile("([0-9a-f]{12})[0-9a-f]{52}")
"""A hash, and the digits of it that are shown."""

Names = tuple[str, str]


def differences(a: ProtocolCard, b: ProtocolCard, names: Names = ("A", "B")) -> list[str]:
    """A line for every field that differs, in the order of the card: `dialect.searches: A 3, B 4`.

    A long text is shown where it first differs, with the white space visible. What another difference implies is left
    out: the hash of a changed prompt, and that no retriever was asked where no corpus was searched.
    """
    implied = {"prompt_sha256"} if a.prompt_text != b.prompt_text else set[str]()
    if a.corpus_sha256 != b.corpus_sha256 and any(not card.retriever and not card.corpus_sha256 for card in (a, b)):
        implied |= {"retriever"}
    was, now = (card.model_dump(mode="json", exclude=implied) for card in (a, b))
    return list(_lines("", was, now, names))


def reward_differences(a: RewardSpec, b: RewardSpec, names: Names = ("A", "B")) -> list[str]:
    """The same for two rewards."""
    return list(_lines("reward", a.model_dump(mode="json"), b.model_dump(mode="json"), names))


def _lines(field: str, a: Any, b: Any, names: Names) -> Iterator[str]:
    """Of two values in JSON. Tables of different kinds are shown whole, and parts of a reward are compared by kind."""
    if a == b:
        return
    if field == "reward.parts":
        field, a, b = "reward", _by_kind(a), _by_kind(b)
        if a == b:
            yield f"{field}.parts: {names[0]} {_shown([*a])}, {names[1]} {_shown([*b])}"
    if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
        for name in a | b:
            yield from _lines(f"{field}.{name}".removeprefix("."), a.get(name), b.get(name), names)
        return
    shown, where = [_shown(a), _shown(b)], ""
    if isinstance(a, str) and isinstance(b, str) and max(len(a), len(b)) > LONGEST and not SHA256.fullmatch(a):
        at = len([*takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))])
        begin, end = max(0, at - BEFORE), at + AFTER
        shown = [_visible("..." * (begin > 0) + text[begin:end] + "..." * (end < len(text))) for text in (a, b)]
        before = a[:at].split("\n")
        where = f" (they first differ in line {len(before)}, character {len(before[-1]) + 1})"
    if shown[0] == shown[1]:
        shown = [repr(a), repr(b)]
    yield f"{field}: {names[0]} {shown[0]}, {names[1]} {shown[1]}{where}"


def _by_kind(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`answer`; a second part of the kind is `answer 2`."""
    seen: Counter[str] = Counter()
    named = {}
    for part in parts:
        seen[part["kind"]] += 1
        named[part["kind"] if seen[part["kind"]] == 1 else f"{part['kind']} {seen[part['kind']]}"] = part
    return named


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return found[1] if (found := SHA256.fullmatch(value)) else _visible(value)
        case list():
            return " and ".join(map(_shown, value)) or "nothing"
        case dict():
            return "(" + ", ".join(f"{name} {_shown(one)}" for name, one in value.items()) + ")"
        case _:
            return str(value)


def _visible(text: str) -> str:
    """The text in backquotes; white space that could be missed is written out: `\\n`, and a dot for a space."""
    if not text:
        return "nothing"
    dotted = re.sub("^ +| +$|  +", lambda spaces: "·" * len(spaces.group()), text, flags=re.MULTILINE)
    return f"`{one_line(dotted)}`"
