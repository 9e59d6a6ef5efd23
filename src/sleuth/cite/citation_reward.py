"""The citation reward: every claim of an answer judged against its citations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from sleuth.answers.answer import given_answer
from sleuth.answers.format import well_formed
from sleuth.answers.search_results import appears_in
from sleuth.cite.claims import CitedAnswer
from sleuth.cite.evidence import abstains, citable, read_answer
from sleuth.cite.measure import (
    Citations,
    EvidenceTexts,
    RewardSum,
    RewardTerms,
    brevity_of,
    measure,
    measure_against_table,
    sheets_of,
)
from sleuth.dialect import Dialect
from sleuth.judges import verdicts_on
from sleuth.types import Case, Episode, Group, Judge, Score, SheetJudge, Verdict, failed_score

Formula = Literal["f1", "dr_tulu"]
"""The citation term of the sum: F1 with leave-one-out precision, or DR Tulu's score."""
Content = Literal["grounded", "none"]
"""The content term: whether a supported claim contains a golden answer, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """One episode's answer split into claims. `outcome` is that of `given_answer`."""

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
    """`reward_sum` of every episode's answer, from verdicts on its claims, requested once per group. Missing if any
    needed verdict is.

    A `judge` rates one case per call; a `sheet_judge` instead rates an answer's cases in one call (several if there are
    more than `MAX_SHEET`), and a `judge` beside it those of a sheet without verdicts.

    An abstention is an answer without claims that says so. It is right if the data says that nothing answers the
    question: then content and citations count as 1. Otherwise both are 0.

    Parts: `citation_recall`, `citation_precision`, `citation_f1`, `citation_precision_concatenated` and `valid_ids` (0
    for an answer without claims, left out for a right abstention), `claims`, `padding`, `abstained`,
    `right_abstention` (of questions without an answer), `well_formed`, `invented_ids` if it cites any, `grounded` if
    the task has golden answers or is unanswerable. If the data has an exact table of what its snippets state, the
    figures against it are logged and not rewarded: `claim_precision`, `claim_recall`, `claim_f1` and `off_query`. The
    note is `cited`, `abstained`, `uncited`, or why there was no answer.
    """

    def __init__(
        self,
        dialect: Dialect,
        judge: Judge | None = None,
        reward_sum: RewardSum | None = None,
        *,
        sheet_judge: SheetJudge | None = None,
        formula: Formula = "f1",
        content: Content = "grounded",
    ) -> None:
        self.dialect = dialect
        self.judge = judge
        self.sheet_judge = sheet_judge
        self.reward_sum = reward_sum or RewardSum()
        self.formula: Formula = formula
        self.content: Content = content

    async def __call__(self, group: Group) -> list[Score]:
        answers = [_parse(episode, self.dialect) for episode in group.episodes]
        sheets = [sheets_of(answer.cited, answer.evidence) for answer in answers]
        distinct = list(dict.fromkeys(chain.from_iterable(sheets)))
        verdicts = dict(zip(distinct, await verdicts_on(distinct, self.judge, self.sheet_judge), strict=True))
        return [
            self._score(
                answer,
                {case: verdict for sheet in own for case, verdict in zip(sheet.cases, verdicts[sheet], strict=True)},
            )
            for answer, own in zip(answers, sheets, strict=True)
        ]

    def _score(self, answer: ParsedAnswer, verdicts: Mapping[Case, Verdict]) -> Score:
        if (failed := failed_score(answer.episode)) is not None:
            return failed
        known = {case: verdict.score for case, verdict in verdicts.items() if verdict.score is not None}
        if len(known) < len(verdicts):
            reason = next(verdict.reason for verdict in verdicts.values() if verdict.score is None)
            return Score(value=None, note=f"the judge gave no verdict: {reason}")
        citations = measure(answer.cited, answer.evidence, known)
        form = well_formed(answer.episode, self.dialect)
        terms = RewardTerms(
            content=content_of(answer, citations) if self.content == "grounded" else None,
            citation=_citation(answer, citations, self.formula),
            padding=0.0 if answer.abstained else answer.cited.padding,
            well_formed=bool(form),
            valid=answer.abstained or (citations.claims > 0 and citations.valid_ids == 1),
            finished=answer.episode.trajectory.stop != "length",
            brevity=brevity_of(answer.cited.words, sum(len(text.split()) for text in answer.evidence.values())),
        )
        return Score(
            value=self.reward_sum.value(terms),
            parts=_parts(answer, citations) | {"well_formed": form},
            note=_note(answer),
        )


def content_of(answer: ParsedAnswer, citations: Citations) -> float | None:
    """1 if a supported claim contains a golden answer or the abstention is right, else 0; None for an answerable task
    without golden answers."""
    if answer.unanswerable:
        return float(answer.abstained)
    golden = answer.episode.task.golden_answers
    if not golden:
        return None
    return float(any(appears_in(text, claim.text) for claim in citations.supported for text in golden))


def _parse(episode: Episode, dialect: Dialect) -> ParsedAnswer:
    answer, outcome = given_answer(episode, dialect)
    cited = read_answer(answer or "", episode)
    return ParsedAnswer(
        episode=episode,
        outcome=outcome,
        cited=cited,
        evidence=citable(episode),
        abstained=answer is not None and not cited.claims and abstains(answer),
    )


def _citation(answer: ParsedAnswer, citations: Citations, formula: Formula) -> float:
    if answer.unanswerable and answer.abstained:
        return 1.0
    return citations.f1 if formula == "f1" else citations.published


def _parts(answer: ParsedAnswer, citations: Citations) -> dict[str, float]:
    parts = {
        "claims": float(citations.claims),
        "padding": 0.0 if answer.abstained else answer.cited.padding,
        "abstained": float(answer.abstained),
    }
    if not (answer.unanswerable and answer.abstained):
        parts |= {
            "citation_recall": citations.recall,
            "citation_precision": citations.precision,
            "citation_f1": citations.f1,
            "citation_precision_concatenated": citations.precision_concatenated,
            "valid_ids": citations.valid_ids,
        }
    if citations.claims:
        parts["invented_ids"] = 1 - citations.valid_ids
    if answer.unanswerable:
        parts["right_abstention"] = float(answer.abstained)
    grounded = content_of(answer, citations)
    if grounded is not None:
        parts["grounded"] = grounded
    return parts | _table_figures(answer)


def _table_figures(answer: ParsedAnswer) -> dict[str, float]:
    """The figures against the data's table of claims; empty if it has none or nothing answers the question."""
    evidence = answer.episode.task.evidence
    if evidence is None or answer.unanswerable or not any(stated.asked for stated in evidence.stated):
        return {}
    figures = measure_against_table(answer.cited, evidence.stated)
    return {
        "claim_precision": figures.precision,
        "claim_recall": figures.recall,
        "claim_f1": figures.f1,
        "off_query": figures.off_query,
    }


def _note(answer: ParsedAnswer) -> str:
    if answer.outcome in ("no_answer", "malformed"):
        return answer.outcome
    if answer.abstained:
        return "abstained"
    return "cited" if answer.cited.claims else "uncited"
