"""The suffix reward: is the continuation after a thought equivalent to the true suffix? Also figures of thoughts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from sleuth.dialect import Tags
from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import Judges
from sleuth.think.env import thinking_of
from sleuth.think.preference_rewards import copying, repetition
from sleuth.think.suffix_judge import ends_right
from sleuth.types import Case, Episode, Group, Judge, Score, Task, Verdict

SUFFIX_CRITERION = (
    "The question is how a text begins and the answer how somebody goes on, cut off after a number of words, which "
    "says nothing against it. In truth the text goes on like this: «{reference}» The answer goes on coherently, keeps "
    "to the matter, and comes to what the text itself says here: whoever read the one would know what the other says."
)
"""Our wording: the published prompt was not printed. The judge never sees the thought."""
YES_THRESHOLD = 0.5
"""A verdict above it is a yes: the reward is binary (arXiv:2601.21343)."""

CaseBuilder = Callable[[Task, str], Case]
"""(task, suffix) -> the case for the judge; the suffix is the text after the thought."""


def equivalence_case(task: Task, suffix: str) -> Case:
    """The case for a model judge, which sees the text before, the true suffix, and the policy's suffix."""
    criterion = SUFFIX_CRITERION.replace("{reference}", task.reference)
    return Case(question=task.question, claim=suffix, evidence="", criterion=criterion)


def known_ending_case(task: Task, suffix: str) -> Case:
    """The case for a judge of known endings: the evidence is the right ones, one name per line."""
    return Case(question=task.question, claim=suffix, evidence="\n".join(task.golden_answers))


def judge_of_suffixes(judge: JudgeFields, judges: Judges) -> tuple[Judge, CaseBuilder]:
    """The judge of whether a suffix is equivalent to the true one, and the question it gets."""
    return judges.judge(judge), known_ending_case if judge.needs_endings else equivalence_case


def is_yes(verdict: Verdict) -> float | None:
    """1 or 0; None without a verdict."""
    return None if verdict.score is None else float(verdict.score > YES_THRESHOLD)


class SuffixReward:
    """1 for a yes of the judge and 0 for a no, also the part `suffix`; missing if the verdict is. A thought that was
    never closed has no suffix and scores 0 without a judge call. The part `right`, if the task has golden endings, is
    logged and not rewarded."""

    def __init__(self, judge: Judge, case_of: CaseBuilder, closing: str) -> None:
        self.judge = judge
        self.case_of = case_of
        self.closing = closing

    async def __call__(self, group: Group) -> list[Score]:
        suffixes = [self._suffix(episode) for episode in group.episodes]
        distinct = list(dict.fromkeys(text for text in suffixes if text is not None))
        verdicts = await self.judge.judge([self.case_of(group.task, text) for text in distinct]) if distinct else []
        by_text = dict(zip(distinct, verdicts, strict=True))
        return [_score(group.task, text, by_text.get(text or "")) for text in suffixes]

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


REPLACEMENT_CHARACTER = "\ufffd"
LETTER_OR_DIGIT = re.compile(r"[^\W_]")


def thought_figures(groups: Sequence[Group], tags: Tags, ends: Collection[int] = ()) -> dict[str, float]:
    """The figures of a step's thoughts for its metrics row, as means over thoughts.

    `thought_tokens_mean` counts a closing tag that the policy wrote; `closed` is the share that the policy closed,
    `empty_thoughts` of those without a letter or a digit, `thought_artefacts` of those that hold a tag, an end-of-text
    token (`ends`), or half a character. `copied` is the share of a thought's 8-grams of words that occur in the text
    before it, `repeated` of its 3-grams that repeat.
    """
    thoughts = [
        (thinking_of(episode.trajectory, tags.close), group.task.question)
        for group in groups
        for episode in group.episodes
    ]
    texts = [(thinking.thought.text.removesuffix(tags.close), before) for thinking, before in thoughts]
    artefacts = (tags.open, tags.close, REPLACEMENT_CHARACTER)
    return {
        "thought_tokens_mean": fmean(len(thinking.thought.tokens) for thinking, _ in thoughts),
        "closed": fmean(thinking.closed_by == "policy" for thinking, _ in thoughts),
        "empty_thoughts": fmean(not LETTER_OR_DIGIT.search(text) for text, _ in texts),
        "thought_artefacts": fmean(
            any(artefact in text for artefact in artefacts) or any(token in ends for token in thinking.thought.tokens)
            for (text, _), (thinking, _) in zip(texts, thoughts, strict=True)
        ),
        "copied": fmean(1 - copying(text, before) for text, before in texts),
        "repeated": fmean(1 - repetition(text) if LETTER_OR_DIGIT.search(text) else 0.0 for text, _ in texts),
    }
