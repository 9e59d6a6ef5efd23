"""The differences of two protocols in plain sentences. A field without a wording of its own is given by its name."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sleuth.dialects import Tags
from sleuth.runs.protocol import ProtocolCard, RewardPart, RewardSpec
from sleuth.types import RetrieverIdentity

LONGEST = 60
"""Characters. Of longer texts, an excerpt around the first difference is shown."""
BEFORE, AFTER = 20, 30
"""Characters of the excerpt before and after the first difference."""
DIGITS = 12
"""Digits of a hash that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The phrase for a field: `says` with its value, `again` for the second checkpoint, and `absent` if the
    field is None or false."""

    says: str
    again: str = "{}"
    absent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`Difference(field="dialect.searches", a=3, b=4)`. Of one part of a reward, `part` is its kind."""

    field: str
    a: Any
    b: Any
    part: str = ""


WORDINGS = {
    "dialect.name": Wording(says="speaks the dialect {}"),
    "dialect.think": Wording(says="thinks in {}", again="in {}"),
    "dialect.search": Wording(says="searches with {}", again="with {}"),
    "dialect.information": Wording(says="gets its results in {}", again="in {}"),
    "dialect.answer": Wording(says="answers in {}", again="in {}"),
    "dialect.stops": Wording(says="ends a turn at {}", again="at {}"),
    "dialect.action": Wording(says="finds actions with {}", again="with {}"),
    "dialect.passage": Wording(says="shows a passage as {}", again="as {}"),
    "dialect.before_results": Wording(says="puts {} before the results"),
    "dialect.margin": Wording(says="puts {} between the results and their tags"),
    "dialect.after_results": Wording(says="puts {} after the results"),
    "dialect.hint": Wording(says="answers a bad action with {}", again="with {}"),
    "dialect.hints": Wording(
        says="limits the bad actions that are forgiven to {}",
        again="to {}",
        absent="lets each bad action cost a search",
    ),
    "dialect.frame": Wording(says="gets its results in a frame of {}", again="of {}"),
    "dialect.tool": Wording(says="calls the tool {}", absent="writes its queries as they are"),
    "dialect.tool.name": Wording(says="calls the tool {}"),
    "dialect.tool.argument": Wording(says="gives its query as {}", again="as {}"),
    "dialect.tool.several": Wording(says="may ask several queries at once", absent="asks one query at a time"),
    "dialect.tool.description": Wording(says="gets the tool description {}"),
    "dialect.tool.argument_description": Wording(says="gets the argument description {}"),
    "dialect.answer_inner": Wording(
        says="answers inside its tags with {}", again="with {}", absent="answers with all that its tags hold"
    ),
    "dialect.answer_form": Wording(says="writes the answer inside its tags as {}", again="as {}"),
    "dialect.between": Wording(says="puts {} between two passages"),
    "dialect.between_queries": Wording(says="puts {} between the results of two queries"),
    "dialect.results_key": Wording(
        says="gets its results as JSON under {}", again="under {}", absent="gets its results as they are"
    ),
    "dialect.question_again": Wording(
        says="repeats the question after the results behind {}",
        again="behind {}",
        absent="does not repeat the question",
    ),
    "dialect.turns": Wording(says="limits turns to {}", again="to {}", absent="does not limit turns"),
    "dialect.response_tokens": Wording(
        says="limits all that follows the prompt to {} tokens",
        again="to {}",
        absent="does not limit the whole response",
    ),
    "dialect.cut_ends": Wording(
        says="ends at a turn that its limit cut", absent="goes on after a turn that its limit cut"
    ),
    "dialect.top_k": Wording(says="limits the passages of a search to {}", again="to {}"),
    "dialect.searches": Wording(says="limits searches to {}", again="to {}", absent="does not limit searches"),
    "dialect.turn_tokens": Wording(says="limits a turn to {} tokens", again="to {}"),
    "dialect.passage_tokens": Wording(
        says="limits each passage to {} tokens", again="to {}", absent="does not limit each passage"
    ),
    "dialect.results_tokens": Wording(
        says="limits all results of a search to {} tokens", again="to {}", absent="does not limit results together"
    ),
    "prompt": Wording(says="has the prompt {}"),
    "prompt_text": Wording(says="is asked with the text {}", again="with {}"),
    "ask_with": Wording(says="is asked with the {} of a row", again="with the {}"),
    "prompt_role": Wording(says="is asked in the role {}", again="in the role {}"),
    "template_flags": Wording(says="gives its chat template {}"),
    "template_sha256": Wording(says="uses the chat template {}", absent="uses no chat template"),
    "context": Wording(says="limits an episode to {} tokens", again="to {}"),
    "forced_search": Wording(
        says="has its first search opened by the environment", absent="opens its first search itself"
    ),
    "closed_book": Wording(says="answers at once, in a tag that the environment opened", absent="may search first"),
    "scorer": Wording(says="is judged by the scorer {}", again="by {}"),
    "corpus_sha256": Wording(says="searched the corpus {}", absent="searched no corpus"),
    "retriever": Wording(says="searched with {}", again="with {}", absent="does not record its retriever"),
    "retriever.shuffled": Wording(says="shows what another question finds", absent="shows what is found"),
    "retriever.encoder": Wording(says="encodes queries with {}", again="with {}"),
    "retriever.weights_sha256": Wording(
        says="has an encoder with the weights {}", again="with {}", absent="does not record its encoder's weights"
    ),
    "retriever.storage": Wording(says="keeps vectors as {}", again="as {}", absent="does not record their storage"),
    "retriever.probes": Wording(says="searches {} lists of vectors", again="{}", absent="searches all vectors"),
    "env": Wording(
        says="acts in the user's environment {}", again="in {}", absent="acts in no environment of the user"
    ),
    "env.functions": Wording(says="acts in the user's environment {}", again="in {}"),
    "env.sources": Wording(says="acts in an environment of the source {}", again="of {}"),
    "loss": Wording(
        says="was trained with the user's loss {}", again="with {}", absent="was trained with no loss of the user"
    ),
    "loss.functions": Wording(says="was trained with the user's loss {}", again="with {}"),
    "loss.sources": Wording(says="was trained with a loss of the source {}", again="of {}"),
    "reward": Wording(says="was trained for the reward {}", again="for {}", absent="was trained for no reward"),
    "reward.aggregation": Wording(says="makes one score of its rewards by {}", again="by {}"),
    "reward.parts": Wording(says="adds its rewards in the order {}", again="in the order {}"),
    "reward.part": Wording(says="was paid for {part} {}", absent="was not paid for {part}"),
    "reward.part.weight": Wording(says="weighs {part} {}"),
    "reward.part.scorer": Wording(says="was paid for {part} by the scorer {}", again="by {}"),
    "reward.part.scorer_version": Wording(
        says="was paid for {part} by version {} of its scorer", again="by version {}"
    ),
    "reward.part.sources": Wording(says="was paid for {part} by the source {}", again="by {}"),
    "reward.part.shuffle": Wording(says="shuffles the scores of {part}", absent="does not shuffle {part}"),
    "questions_sha256": Wording(says="was trained on the questions {}", again="on {}", absent="names no questions"),
    "sleuth_version": Wording(says="was trained by Sleuth {}", again="by {}"),
}
"""By dotted field of the card."""


def differences(a: ProtocolCard, b: ProtocolCard, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """One sentence for every field that differs, in the order of the card: `A searches with <search>, B with <tool>`.

    A long text is shown where it first differs, with the white space visible.
    """
    return [_sentence(difference, names) for difference in _differing("", a, b) if not _is_implied(difference, a, b)]


def reward_differences(a: RewardSpec, b: RewardSpec, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """The same for two rewards."""
    return [_sentence(difference, names) for difference in _differing("reward", a, b)]


def visible(text: str) -> str:
    """The text in backquotes; white space that could be missed is written out: `\\n`, and a dot for a space."""
    if not text:
        return "nothing"
    dotted = re.sub("^ +| +$|  +", lambda spaces: "·" * len(spaces.group()), text, flags=re.MULTILINE)
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in dotted)
    return f"`{''.join(escaped)}`"


# -- what differs ----------------------------------------------------------------------------------------------------


def _differing(field: str, a: Any, b: Any) -> Iterator[Difference]:
    if field == "reward.parts":
        yield from _differing_parts(a, b)
    elif isinstance(a, RetrieverIdentity) and isinstance(b, RetrieverIdentity) and a.kind != b.kind:
        yield Difference(field=field, a=a, b=b)
    elif _is_record(a) and type(a) is type(b):
        for name in _fields(a):
            yield from _differing(f"{field}.{name}" if field else name, getattr(a, name), getattr(b, name))
    elif a != b:
        yield Difference(field=field, a=a, b=b)


def _differing_parts(a: Sequence[RewardPart], b: Sequence[RewardPart]) -> Iterator[Difference]:
    """Parts are matched by kind, not by position."""
    parts_a, parts_b = _by_kind(a), _by_kind(b)
    for kind in parts_a | parts_b:
        of_part = _differing("reward.part", parts_a.get(kind), parts_b.get(kind))
        yield from (dataclasses.replace(difference, part=visible(kind)) for difference in of_part)
    orders = tuple(kind for kind in parts_a if kind in parts_b), tuple(kind for kind in parts_b if kind in parts_a)
    if orders[0] != orders[1]:
        yield Difference(field="reward.parts", a=orders[0], b=orders[1])


def _by_kind(parts: Sequence[RewardPart]) -> dict[str, RewardPart]:
    """`answer`; a second part of the kind is `answer 2`."""
    seen: Counter[str] = Counter()
    named = {}
    for part in parts:
        seen[part.kind] += 1
        named[part.kind if seen[part.kind] == 1 else f"{part.kind} {seen[part.kind]}"] = part
    return named


def _is_implied(difference: Difference, a: ProtocolCard, b: ProtocolCard) -> bool:
    """Whether another difference implies this one: a changed prompt text implies a changed hash, and having searched no
    corpus implies having had no retriever."""
    if difference.field == "retriever" and a.corpus_sha256 != b.corpus_sha256:
        return any(card.retriever is None and card.corpus_sha256 is None for card in (a, b))
    return difference.field == "prompt_sha256" and a.prompt_text != b.prompt_text


def _is_record(value: Any) -> bool:
    return isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, Tags))


def _fields(record: Any) -> list[str]:
    if isinstance(record, BaseModel):
        return list(type(record).model_fields)
    return [field.name for field in dataclasses.fields(record)]


# -- in words --------------------------------------------------------------------------------------------------------


def _sentence(difference: Difference, names: tuple[str, str]) -> str:
    wording = WORDINGS.get(difference.field) or _plain(difference)
    a, b, where = _shown_pair(difference)

    def says(template: str, value: str) -> str:
        return template.format(value, part=difference.part)

    absent = [wording.absent if value is None or value is False else None for value in (difference.a, difference.b)]
    first = says(absent[0] or wording.says, a)
    second = says(absent[1] or (wording.says if absent[0] else wording.again), b)
    return f"{names[0]} {first}, {names[1]} {second}{where}"


def _plain(difference: Difference) -> Wording:
    """The wording of a field that has none in WORDINGS."""
    of = " of {part}" if difference.part else ""
    return Wording(says=f"has {difference.field}{of} = {{}}")


def _shown_pair(difference: Difference) -> tuple[str, str, str]:
    """Both values as shown, never equal, and the position of the first difference of long texts."""
    a, b, where = difference.a, difference.b, ""
    if difference.field.endswith("sha256"):
        shown = [str(value)[:DIGITS] for value in (a, b)]
    elif difference.field.endswith(".sources"):
        shown = [_changed_files(*pair) for pair in ((a, b), (b, a))]
    elif isinstance(a, str) and isinstance(b, str) and max(len(a), len(b)) > LONGEST:
        at = _first_difference(a, b)
        shown = [visible(_excerpt(text, at)) for text in (a, b)]
        before = a[:at].split("\n")
        where = f" (they first differ in line {len(before)}, character {len(before[-1]) + 1})"
    else:
        shown = [_shown(value) for value in (a, b)]
    if shown[0] == shown[1]:
        shown = [repr(value) for value in (a, b)]
    return shown[0], shown[1], where


def _changed_files(files: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The files whose hash is not that of the others: `my_rewards.py (5f1c02ab93de)`."""
    changed = sorted(files.items() - others.items())
    return ", ".join(f"{name} ({str(sha256)[:DIGITS]})" for name, sha256 in changed) or "none of them"


def _first_difference(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(a), len(b)))


def _excerpt(text: str, at: int) -> str:
    begin, end = max(0, at - BEFORE), at + AFTER
    return ("..." if begin > 0 else "") + text[begin:end] + ("..." if end < len(text) else "")


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
