"""A thought by what was written behind it: does that come to what the text itself says?"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from sleuth.dialects import Tags
from sleuth.envs.thought import thinking_of
from sleuth.judges.ending import ends_right
from sleuth.rewards.preference import BROKEN, copying, repetition
from sleuth.types import Case, Episode, Group, Judge, Score, Task, Verdict

COMES_TO = (
    "The question is how a text begins and the answer how somebody goes on, cut off after a number of words, which "
    "says nothing against it. In truth the text goes on like this: «{reference}» The answer goes on coherently, keeps "
    "to the matter, and comes to what the text itself says here: whoever read the one would know what the other says."
)
"""What is judged, in our words; the published prompt is not printed. The judge never sees the thought."""
YES = 0.5
"""A verdict above it is a yes: the reward is binary (arXiv:2601.21343)."""

Asks = Callable[[Task, str], Case]
"""(task, what was written behind the thought) -> what the judge is asked."""


def comes_to_the_truth(task: Task, suffix: str) -> Case:
    """What a model is asked: it sees the text before, the true suffix, and what was written."""
    criterion = COMES_TO.replace("{reference}", task.reference)
    return Case(question=task.question, claim=suffix, evidence="", criterion=criterion)


def ends_as_known(task: Task, suffix: str) -> Case:
    """What somebody is asked who knows right endings: they are the evidence, a name a line."""
    return Case(question=task.question, claim=suffix, evidence="\n".join(task.golden_answers))


def is_yes(verdict: Verdict) -> float | None:
    """1 or 0; None where there is no verdict."""
    return None if verdict.score is None else float(verdict.score > YES)


class SuffixReward:
    """1 for a yes of the judge and 0 for a no, as the part `suffix`; missing where the verdict is. A thought that was
    never closed has no suffix and is worth 0, without asking. `right` is told beside it, where the text says what a
    right ending names."""

    def __init__(self, judge: Judge, asks: Asks, closing: str) -> None:
        self.judge = judge
        self.asks = asks
        self.closing = closing

    async def __call__(self, group: Group) -> list[Score]:
        written = [self._suffix(episode) for episode in group.episodes]
        asked = list(dict.fromkeys(text for text in written if text is not None))
        verdicts = await self.judge.judge([self.asks(group.task, text) for text in asked]) if asked else []
        found = dict(zip(asked, verdicts, strict=True))
        return [_score(group.task, text, found.get(text or "")) for text in written]

    def _suffix(self, episode: Episode) -> str | None:
        suffix = thinking_of(episode.trajectory, self.closing).suffix
        return None if suffix is None else suffix.text


def _score(task: Task, text: str | None, verdict: Verdict | None) -> Score:
    right = {"right": float(text is not None and ends_right(text, task.golden_answers))} if task.golden_answers else {}
    if text is None or verdict is None:
        return Score(value=0.0, parts={"suffix": 0.0, **right}, note="the thought was never closed")
    value = is_yes(verdict)
    if value is None:
        return Score(value=None, parts=right, note=f"the judge gave no verdict: {verdict.reason}")
    return Score(value=value, parts={"suffix": value, **right})


SOMETHING = re.compile(r"[^\W_]")


def thought_signs(groups: Sequence[Group], tags: Tags, ends: Collection[int] = ()) -> dict[str, float]:
    """The side of a step's row that looks at its thoughts; means over them.

    `thought_tokens_mean` counts the closing tag that a policy wrote; `closed` is the share that the policy closed,
    `empty_thoughts` of those without a letter or a digit, `thought_artefacts` of those that hold a tag, a token that
    ends a text (`ends`), or half a character. `copied` is the share of a thought's runs of eight words that stand in
    the text before it, `repeated` of its runs of three words that come again.
    """
    found = [
        (thinking_of(episode.trajectory, tags.close), group.task.question)
        for group in groups
        for episode in group.episodes
    ]
    texts = [(thinking.thought.text.removesuffix(tags.close), before) for thinking, before in found]
    strange = (tags.open, tags.close, BROKEN)
    return {
        "thought_tokens_mean": fmean(len(thinking.thought.tokens) for thinking, _ in found),
        "closed": fmean(thinking.closed_by == "policy" for thinking, _ in found),
        "empty_thoughts": fmean(not SOMETHING.search(text) for text, _ in texts),
        "thought_artefacts": fmean(
            any(sign in text for sign in strange) or any(token in ends for token in thinking.thought.tokens)
            for (text, _), (thinking, _) in zip(texts, found, strict=True)
        ),
        "copied": fmean(1 - copying(text, before) for text, before in texts),
        "repeated": fmean(1 - repetition(text, before) if SOMETHING.search(text) else 0.0 for text, before in texts),
    }
