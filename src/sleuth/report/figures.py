"""Figures of evaluations, base beside trained: table rows with their pictures, and counts of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sleuth.answers.answer import SCORE
from sleuth.evaluation.headline import same_reward
from sleuth.evaluation.intervals import Measured
from sleuth.evaluation.metrics import is_score, score_label
from sleuth.evaluation.paired import Evaluation, mean_difference, records_of, side_of_zero
from sleuth.report.axes import Scale, round_domain
from sleuth.report.run_files import BASE, TRAINED

LABELS = {
    "em": "Exact match",
    "em_one_hop": "Exact match, one hop",
    "em_two_hop": "Exact match, two hops",
    "sub_match": "Golden answer within the answer",
    "f1": "F1 of the answer's words",
    "searched": "Searched at least once",
    "searches_mean": "Searches",
    "searches_two_hop": "Searches on two-hop questions",
    "query_recall": "First query finds a gold passage",
    "query_recall_searched": "The same, among those that searched",
    "evidence_shown": "Evidence among the results",
    "citation_recall": "Claims that their citations support",
    "citation_precision": "Citations that are needed",
    "citation_f1": "F1 of the citations",
    "citation_precision_concatenated": "Claims supported at all",
    "valid_ids": "Cited ids that exist",
    "invented_ids": "Cited ids that do not exist",
    "claim_precision": "Citations that are right, by the table",
    "claim_recall": "Asked claims with a right citation, by the table",
    "claim_f1": "F1 of the claims, by the table",
    "off_query": "Claims not asked for",
    "cites": "Answers that cite a passage shown",
    "cited_holds_answer": "Right answers in what they quote",
    "cited_gold": "Right answers that quote the right passage",
    "grounded": "Right answer in a supported claim",
    "right_abstention": "Abstains where nothing answers",
    "wrong_abstention": "Abstains where something does",
    "abstention_f1": "F1 of abstaining",
    "well_formed": "Well-formed episodes",
    "padding": "Words without a citation",
    "claims": "Claims",
    "refiner_abstained": "Results of which the refiner claims nothing",
    "refiner_too_long": "Results too long for the refiner",
    "response_tokens_mean": "Tokens the policy wrote",
    "results_tokens_mean": "Tokens of results it was shown",
    "missing": "Missing verdicts",
    "gain_sampled": "Gain of its own thoughts, in nats a token",
    "blank_nll": "Nats a token behind an empty thought",
    "gained_share": "Share of these that its own thoughts gain",
    "over_generic": "Its own over phrases that fit any text",
    "over_swapped": "Its own over thoughts of other texts",
    "over_within": "Its own over thoughts of other places",
    "over_teacher": "Its own over a teacher's",
    "right_sampled": "Right endings behind its own thoughts",
    "right_blank": "Right endings behind an empty one",
    "reward_mean": "Reward of its own thoughts",
    "no_signal": "Groups without signal",
    "closed": "Thoughts that it closed itself",
    "thought_tokens": "Tokens of its own thoughts, with their tags",
    "thought_nll": "Nats a token of a teacher's thoughts",
    "text_nll": "Nats a token of the text",
    "win_rate": "Continuations that are preferred",
}

DECIMALS = {
    "searches_mean": 2,
    "searches_two_hop": 2,
    "claims": 2,
    "response_tokens_mean": 1,
    "results_tokens_mean": 1,
    "thought_tokens": 1,
}
"""Decimals of a figure; 3 by default."""

OUTCOMES = ("correct", "wrong", "no_answer", "malformed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """A value and its interval on the row's axis; `low`, `value` and `high` are pixels, `arm` selects the colour."""

    arm: str
    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure in every arm. `measured` is in the order of the arms, None where an arm lacks it; `difference` is
    trained minus base over the questions that both answered, None without records."""

    key: str
    label: str
    measured: tuple[Measured | None, ...]
    difference: Measured | None
    whiskers: tuple[Whisker, ...]
    axis: Scale

    @property
    def digits(self) -> int:
        """Decimals of its values."""
        return DECIMALS.get(self.key, 3)

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference excludes zero."""
        return side_of_zero(self.difference) != 0


def arms_of(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Names of the evaluations that are columns: base, trained, then the others. Sets of a suite are left out: the
    suite has their mean."""
    first = [name for name in (BASE, TRAINED) if name in evaluations]
    return first + [name for name, one in evaluations.items() if name not in first and "set" not in one]


def figure_rows(evaluations: Mapping[str, Evaluation]) -> list[FigureRow]:
    """A row for each figure of some evaluation: those that lead, those of LABELS in their order, then the others."""
    arms = arms_of(evaluations)
    found = [key for name in arms for key, value in evaluations[name].items() if measured_of(value)]
    leads = [key for name in arms for key in evaluations[name].get("headline", ())]
    keys = dict.fromkeys([*leads, *LABELS, *found])
    return [_row(key, arms, evaluations) for key in keys if key in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRow:
    """A score of one test set of a suite in every arm, as `FigureRow`."""

    set: str
    key: str
    measured: tuple[Measured | None, ...]
    difference: Measured | None

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference excludes zero."""
        return side_of_zero(self.difference) != 0


def set_rows(evaluations: Mapping[str, Evaluation]) -> list[SetRow]:
    """Exact match and the scores of other scorers for each test set of the suites; none without a suite."""
    arms = arms_of(evaluations)
    asked = {name: evaluations[name].get("sets", {}) for name in arms}
    names = dict.fromkeys(set_name for sets in asked.values() for set_name in sets)
    rows: list[SetRow] = []
    for set_name in names:
        found = [sets.get(set_name, {}) for sets in asked.values()]
        scores = dict.fromkeys(key for one in found for key in one if is_score(key))
        leads = evaluations.get(arms[0], {}).get("headline", ())
        trained, base = (evaluations.get(f"{name}@{set_name}", {}).get("records", ()) for name in (TRAINED, BASE))
        rows += [
            SetRow(
                set=set_name,
                key=key,
                measured=tuple(measured_of(one.get(key)) for one in found),
                difference=mean_difference(key, trained, base),
            )
            for key in dict.fromkeys([*leads, "em", *scores])
        ]
    return rows


def outcome_table(evaluations: Mapping[str, Evaluation]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Rows (outcome, [(count, share) of each arm]): the four outcomes, then the reasons of missing verdicts, or one row
    of zeros. Where a stage's own score is the verdict, how the episodes ended and why scores are missing."""
    counts = [evaluations[name].get("outcomes", {}) for name in arms_of(evaluations)]
    if not any(counts):
        return []
    reasons = list(dict.fromkeys(name for arm in counts for name in arm if name not in OUTCOMES))
    ours = OUTCOMES if any(name in OUTCOMES for arm in counts for name in arm) else ()
    totals = [max(1, sum(arm.values())) for arm in counts]
    return [
        (name, [(arm.get(name, 0), arm.get(name, 0) / total) for arm, total in zip(counts, totals, strict=True)])
        for name in (*ours, *(reasons or ["missing"]))
    ]


def measured_of(value: object) -> Measured | None:
    """An entry of an evaluation file as a figure; None if it is something else or has no value."""
    parts = ("value", "low", "high", "n")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(part), int | float) for part in parts):
        return None
    return Measured(**{part: value[part] for part in parts})


def _row(key: str, arms: Sequence[str], evaluations: Mapping[str, Evaluation]) -> FigureRow:
    measured = {arm: measured_of(evaluations[arm].get(key)) for arm in arms}
    drawn, axis = whiskers(measured)
    sides = [evaluations[name] for name in (TRAINED, BASE) if name in evaluations]
    trained, base = (records_of(evaluations, name) for name in (TRAINED, BASE))
    return FigureRow(
        key=key,
        label=label_of(key),
        measured=tuple(measured.values()),
        difference=mean_difference(key, trained, base) if key != SCORE or same_reward(*sides) else None,
        whiskers=drawn,
        axis=axis,
    )


def label_of(key: str) -> str:
    """A figure in words: of one that LABELS lacks, the words of its name."""
    if is_score(key):
        return score_label(key)
    words = key.replace("_", " ")
    return LABELS.get(key) or words[:1].upper() + words[1:]


def whiskers(measured: Mapping[str, Measured | None]) -> tuple[tuple[Whisker, ...], Scale]:
    """The picture of each arm's value, and its axis: 0 to 1 for shares, else the range of the values."""
    bounds = [
        (arm, one.low or 0.0, one.value or 0.0, one.high or 0.0) for arm, one in measured.items() if one and one.n
    ]
    lowest, highest = min((low for _, low, *_ in bounds), default=0.0), max((high for *_, high in bounds), default=1.0)
    low, high = (0.0, 1.0) if lowest >= 0 and highest <= 1 else round_domain([lowest, highest])
    x = Scale(low=low, high=high, start=12, end=268)
    return tuple(Whisker(arm=arm, low=x(low), value=x(value), high=x(high)) for arm, low, value, high in bounds), x
