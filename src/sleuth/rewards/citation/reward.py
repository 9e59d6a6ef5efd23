"""The citation reward: every claim of an answer judged by what it cites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sleuth.dialects import Dialect
from sleuth.rewards.answer import FAILED, given_answer
from sleuth.rewards.citation.claims import CitedAnswer
from sleuth.rewards.citation.evidence import abstains, citable, read_answer
from sleuth.rewards.citation.measure import (
    Citations,
    EvidenceTexts,
    Graded,
    RewardSum,
    brevity_of,
    cases_of,
    compare,
    measure,
)
from sleuth.rewards.format import well_formed
from sleuth.rewards.supplied import stands_in
from sleuth.types import Case, Episode, Group, Judge, Score, Verdict

Formula = Literal["f1", "dr_tulu"]
"""What stands for the citations in a sum: F1 with the precision that leaves one out, or DR Tulu's own score."""
Content = Literal["grounded", "none"]
"""What judges the content: whether a supported claim holds a golden answer, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One episode's answer, taken apart. `outcome` is what the strict reader made of it: `no_answer` or `malformed`
    where there is none."""

    episode: Episode
    outcome: str
    cited: CitedAnswer
    evidence: EvidenceTexts
    abstained: bool

    @property
    def unanswerable(self) -> bool:
        """Whether the data says that the evidence does not answer the question."""
        evidence = self.episode.task.evidence
        return evidence is not None and evidence.answerable is False


class CitationReward:
    """`worth` of every episode's answer, by what `judge` says of its claims; one call for a whole group. Missing where
    the judge gave no verdict that was needed: a judge that is out is no reason to pay for silence.

    An abstention is a claimless answer that says so. It is right where the data says that nothing answers the question:
    then content and citations count as 1. Anywhere else both are 0.

    Parts: `citation_recall`, `citation_precision`, `citation_f1`, `citation_precision_concatenated` and `valid_ids` (0
    where the answer claims nothing, left out where it rightly does not), `claims`, `padding`, `abstained`,
    `right_abstention` (of questions without an answer), `well_formed`, `invented_ids` where it cites any, `grounded`
    where the task can tell. Where the data has an exact table of what its snippets state, what that makes of the answer
    is told beside it and never paid: `claim_precision`, `claim_recall`, `claim_f1` and `off_query`. The note is
    `cited`, `abstained`, `uncited`, or why there was no answer.
    """

    def __init__(
        self,
        dialect: Dialect,
        judge: Judge,
        worth: RewardSum | None = None,
        *,
        formula: Formula = "f1",
        content: Content = "grounded",
    ) -> None:
        self.dialect = dialect
        self.judge = judge
        self.worth = worth or RewardSum()
        self.formula: Formula = formula
        self.content: Content = content

    async def __call__(self, group: Group) -> list[Score]:
        readings = [_read(episode, self.dialect) for episode in group.episodes]
        asked = list(dict.fromkeys(case for one in readings for case in cases_of(one.cited, one.evidence)))
        verdicts = dict(zip(asked, await self.judge.judge(asked), strict=True)) if asked else {}
        return [self._score(reading, verdicts) for reading in readings]

    def _score(self, reading: Reading, verdicts: dict[Case, Verdict]) -> Score:
        if reading.episode.trajectory.stop == "failed":
            return FAILED
        cases = cases_of(reading.cited, reading.evidence)
        support = {case: verdicts[case].score for case in cases}
        known = {case: score for case, score in support.items() if score is not None}
        if len(known) < len(cases):
            reason = next(verdicts[case].reason for case, score in support.items() if score is None)
            return Score(value=None, note=f"the judge gave no verdict: {reason}")
        citations = measure(reading.cited, reading.evidence, known)
        whole = well_formed(reading.episode, self.dialect)
        graded = Graded(
            content=content_of(reading, citations) if self.content == "grounded" else None,
            citation=_citation(reading, citations, self.formula),
            padding=0.0 if reading.abstained else reading.cited.padding,
            well_formed=bool(whole),
            valid=reading.abstained or (citations.claims > 0 and citations.valid_ids == 1),
            finished=reading.episode.trajectory.stop != "length",
            brevity=brevity_of(reading.cited.words, sum(len(text.split()) for text in reading.evidence.values())),
        )
        return Score(
            value=self.worth.of(graded), parts=_parts(reading, citations) | {"well_formed": whole}, note=_note(reading)
        )


def content_of(reading: Reading, citations: Citations) -> float | None:
    """1 where a golden answer stands in a supported claim, or where the policy rightly abstains; else 0, and None where
    the task cannot tell."""
    if reading.unanswerable:
        return float(reading.abstained)
    golden = reading.episode.task.golden_answers
    if not golden:
        return None
    return float(any(stands_in(answer, claim.text) for claim in citations.supported for answer in golden))


def _read(episode: Episode, dialect: Dialect) -> Reading:
    answer, outcome = given_answer(episode, dialect)
    cited = read_answer(answer or "", episode)
    return Reading(
        episode=episode,
        outcome=outcome,
        cited=cited,
        evidence=citable(episode),
        abstained=answer is not None and not cited.claims and abstains(answer),
    )


def _citation(reading: Reading, citations: Citations, formula: Formula) -> float:
    if reading.unanswerable and reading.abstained:
        return 1.0
    return citations.f1 if formula == "f1" else citations.published


def _parts(reading: Reading, citations: Citations) -> dict[str, float]:
    parts = {
        "claims": float(citations.claims),
        "padding": 0.0 if reading.abstained else reading.cited.padding,
        "abstained": float(reading.abstained),
    }
    if not (reading.unanswerable and reading.abstained):
        parts |= {
            "citation_recall": citations.recall,
            "citation_precision": citations.precision,
            "citation_f1": citations.f1,
            "citation_precision_concatenated": citations.precision_concatenated,
            "valid_ids": citations.valid_ids,
        }
    if citations.claims:
        parts["invented_ids"] = 1 - citations.valid_ids
    if reading.unanswerable:
        parts["right_abstention"] = float(reading.abstained)
    grounded = content_of(reading, citations)
    if grounded is not None:
        parts["grounded"] = grounded
    return parts | _tabled(reading)


def _tabled(reading: Reading) -> dict[str, float]:
    """Against the table of a question that its evidence answers, where the data has one."""
    evidence = reading.episode.task.evidence
    if evidence is None or reading.unanswerable or not any(stated.asked for stated in evidence.stated):
        return {}
    found = compare(reading.cited, evidence.stated)
    return {
        "claim_precision": found.precision,
        "claim_recall": found.recall,
        "claim_f1": found.f1,
        "off_query": found.off_query,
    }


def _note(reading: Reading) -> str:
    if reading.outcome in ("no_answer", "malformed"):
        return reading.outcome
    if reading.abstained:
        return "abstained"
    return "cited" if reading.cited.claims else "uncited"
