"""What follows a thought: a reward for a suffix that is equivalent to the true one, a judge that knows the right ending
of world texts, and figures of how thoughts look."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from sleuth.dialect import Tags
from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.rewards import Judges
from sleuth.think.env import thinking_of
from sleuth.types import Case, Episode, Group, Judge, Pair, Score, Task, Verdict

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


# -- a judge that knows the right endings ------------------------------------------------------------------------------

SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
DIGESTS = 2.0**64


class EndingJudge:
    """A `Judge` and `PairJudge` of continuations; the `evidence` of a case or pair lists the right endings, one name
    per line. The continuation that ends right is better; if both or neither do, it is a tie. Without evidence the
    verdict is missing.

    A share `flip` of the verdicts is inverted on purpose (a tie stays one), chosen by a hash of the texts in their
    order, so that the same question always gets the same answer.
    """

    def __init__(self, flip: float = 0.0) -> None:
        self.flip = flip

    @property
    def identity(self) -> str:
        """Changes whenever the same pair could get another verdict."""
        return f"ending flip={self.flip:g}" if self.flip else "ending"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """1 for each continuation (the claim) that ends right, else 0."""
        return [self._verdict(case.evidence, case.question, case.claim) for case in cases]

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """1, 0.5 or 0 for each pair."""
        return [self._verdict(pair.evidence, pair.question, pair.first, pair.second) for pair in pairs]

    def _verdict(self, evidence: str, question: str, first: str, second: str | None = None) -> Verdict:
        answers, texts = evidence.splitlines(), (first,) if second is None else (first, second)
        if not answers:
            return Verdict(score=None, reason="the text does not say what a right ending names")
        right = [float(ends_right(text, answers)) for text in texts]
        score = right[0] if second is None else (1 + right[0] - right[1]) / 2
        if self._errs(question, *texts):
            return Verdict(score=1 - score, reason="an error on purpose")
        return Verdict(score=score, reason=f"a right ending names {answers[0]}")

    def _errs(self, *texts: str) -> bool:
        key = "\0".join(texts).encode(errors="replace")
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") < self.flip * DIGESTS


def ends_right(text: str, answers: Sequence[str]) -> bool:
    """Whether the first sentence of a continuation ends with the words of one of `answers`, ignoring case. A sentence
    that continues after them does not count: it may mean something else."""
    words = re.findall(r"\w+", SENTENCE_END.split(text.strip(), maxsplit=1)[0].lower())
    endings = [re.findall(r"\w+", answer.lower()) for answer in answers]
    return any(ending and words[-len(ending) :] == ending for ending in endings)


# -- how thoughts look -------------------------------------------------------------------------------------------------

WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
LETTER_OR_DIGIT = re.compile(r"[^\W_]")
REPLACEMENT_CHARACTER = "\ufffd"
REPETITION_WORDS, COPYING_WORDS = 3, 8
"""Words of the runs that count as repeated in a thought, and as copied from the text before it."""


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


def repetition(text: str) -> float:
    """The share of distinct 3-grams of words: 1 if none repeats."""
    ngrams = _ngrams(text, REPETITION_WORDS)
    return len(set(ngrams)) / len(ngrams) if ngrams else float(bool(WORD.search(text)))


def copying(text: str, prefix: str) -> float:
    """The share of 8-grams of words that are not in the prefix."""
    ngrams, in_prefix = _ngrams(text, COPYING_WORDS), set(_ngrams(prefix, COPYING_WORDS))
    return 1 - fmean(ngram in in_prefix for ngram in ngrams) if ngrams else 1.0


def _ngrams(text: str, length: int) -> list[tuple[str, ...]]:
    words = [word.lower() for word in WORD.findall(text)]
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
