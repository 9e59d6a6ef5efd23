"""Citation recall, precision and F1 of an answer from a judge's verdicts, the reward sums over them, and figures
against an exact table of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.answers.match import normalise
from sleuth.cite.claims import CitedAnswer, Claim
from sleuth.types import Case, ClaimSheet, StatedClaim

SUPPORTED = 0.5
"""The lowest verdict that counts as support."""

EvidenceTexts = Mapping[str, str]
"""Citable texts by id: `{"a1": "Ada Voss was born in Tarn."}`."""

Support = Mapping[Case, float]
"""How far the evidence of each case supports its claim, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citations:
    """The figures of one answer, each from 0 to 1 except the number of `claims`.

    - `recall`: the mean over claims of how far a claim's citations together support it;
    - `precision`: the share of citations that are needed. As in ALCE (arXiv:2305.14627), a citation is not needed if
      its claim is unsupported, or if it alone does not support the claim and the others do without it; an id that does
      not exist is never needed;
    - `f1`: their harmonic mean;
    - `precision_concatenated`: the share of claims that their citations together support: DR Tulu's precision
      (arXiv:2511.19399), which citing ten ids instead of one does not lower;
    - `valid_ids`: the share of the distinct ids that exist;
    - `published`: DR Tulu's 0.6 mean F1 of the claims, with that precision, + 0.4 `valid_ids`. Departure: text that
      cites nothing is no claim; there it may count as one with an F1 of 1.
    """

    recall: float
    precision: float
    f1: float
    precision_concatenated: float
    valid_ids: float
    published: float
    claims: int
    supported: tuple[Claim, ...]


MAX_SHEET = 16
"""Entries of a sheet at most: an answer that names ten ids in each claim would otherwise need more tokens than a judge
has, its verdicts would be missing, and so its score."""


def sheets_of(answer: CitedAnswer, evidence: EvidenceTexts) -> list[ClaimSheet]:
    """The cases to judge, on sheets of at most `MAX_SHEET`: each claim with all its citations and, if several, with
    each one alone and left out. A sheet has the snippets that its claims cite, sorted by id."""
    cases = [*_cited_cases(answer, evidence).items()]
    sheets = []
    for start in range(0, len(cases), MAX_SHEET):
        chunk = cases[start : start + MAX_SHEET]
        index = {id_: index for index, id_ in enumerate(sorted({id_ for _, ids in chunk for id_ in ids}))}
        entries = tuple((case.claim, tuple(sorted(index[id_] for id_ in ids))) for case, ids in chunk)
        sheets.append(ClaimSheet(snippets=tuple(evidence[id_] for id_ in index), entries=entries))
    return sheets


def _cited_cases(answer: CitedAnswer, evidence: EvidenceTexts) -> dict[Case, Sequence[str]]:
    """The ids of each case."""
    cases: dict[Case, Sequence[str]] = {}
    for claim in answer.claims:
        known = _known(claim, evidence)
        selections = [known] if known else []
        if len(known) > 1:
            selections += [[id_] for id_ in known] + [_without(id_, known) for id_ in known]
        for ids in selections:
            cases.setdefault(_case(claim, ids, evidence), ids)
    return cases


def measure(answer: CitedAnswer, evidence: EvidenceTexts, support: Support) -> Citations:
    """The figures of an answer; all 0 if it has no claims. `support` holds every case of `sheets_of`."""
    if not answer.claims:
        return Citations(
            recall=0.0,
            precision=0.0,
            f1=0.0,
            precision_concatenated=0.0,
            valid_ids=0.0,
            published=0.0,
            claims=0,
            supported=(),
        )
    recalls = [_recall(claim, evidence, support) for claim in answer.claims]
    supported = [float(recall >= SUPPORTED) for recall in recalls]
    needed = sum(_needed(claim, evidence, support) for claim in answer.claims)
    recall, precision = fmean(recalls), needed / sum(len(claim.ids) for claim in answer.claims)
    valid_ids = len(answer.ids & evidence.keys()) / len(answer.ids)
    return Citations(
        recall=recall,
        precision=precision,
        f1=harmonic_mean(recall, precision),
        precision_concatenated=fmean(supported),
        valid_ids=valid_ids,
        published=0.6 * fmean(map(harmonic_mean, recalls, supported)) + 0.4 * valid_ids,
        claims=len(answer.claims),
        supported=tuple(claim for claim, yes in zip(answer.claims, supported, strict=True) if yes),
    )


def harmonic_mean(recall: float, precision: float) -> float:
    """F1; 0 if both are 0."""
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _recall(claim: Claim, evidence: EvidenceTexts, support: Support) -> float:
    known = _known(claim, evidence)
    return support[_case(claim, known, evidence)] if known else 0.0


def _needed(claim: Claim, evidence: EvidenceTexts, support: Support) -> int:
    """The number of needed citations of a claim."""
    known = _known(claim, evidence)
    together = _recall(claim, evidence, support)
    if together < SUPPORTED:
        return 0
    if len(known) == 1:
        return 1

    def is_needed(id_: str) -> bool:
        alone = support[_case(claim, [id_], evidence)]
        rest = support[_case(claim, _without(id_, known), evidence)]
        return alone >= SUPPORTED or rest < together

    return sum(map(is_needed, known))


def _known(claim: Claim, evidence: EvidenceTexts) -> list[str]:
    return [id_ for id_ in claim.ids if id_ in evidence]


def _without(id_: str, ids: Sequence[str]) -> list[str]:
    return [other for other in ids if other != id_]


def _case(claim: Claim, ids: Sequence[str], evidence: EvidenceTexts) -> Case:
    """The case with its texts sorted by id, so that no verdict depends on the order of citations."""
    return Case(claim=claim.text, evidence="\n\n".join(evidence[id_] for id_ in sorted(ids)))


MIN_BRIEF_WORDS = 30
"""Answers of at most so many words count as brief, however short their evidence is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerms:
    """The terms of one answer's reward. `content` is None if nothing judges it; `finished` is false if the token budget
    cut the answer; `well_formed` is true for one closed answer and nothing else but the thought that the dialect asks
    for; `valid` is true if it abstains, or cites at least one id and only ids that exist; `brevity`: see `brevity_of`.
    """

    content: float | None
    citation: float
    padding: float
    well_formed: bool
    valid: bool
    finished: bool
    brevity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """A reward formula and its weights: `RewardSum(name="additive", citation_weight=0.2, verification_reward=10.0)` is
    that of S2's card.

    With `format_gate` content counts only if the answer is well-formed; with `non_stop_penalty` an answer that the
    budget cut scores 0. `verification_reward` multiplies the sum (advantages divided by sigma do not change, centered
    ones scale). `padding_penalty` is what an answer of nothing but filler loses.

    The published cards name the parts and their weights, not the sum: `additive` and `convex` are the two that fit. An
    additive citation term counts as much beside a wrong answer as beside a right one, so that a group in which only the
    citations vary is trained as hard as one in which the answers do; a convex one bounds that. Both reward form alone.

    Our `recommended` scores 0 or less unless a well-formed answer cites only existing ids, so that guessing ids never
    pays; brevity lowers the score of long copies of the evidence; 0.6 of the rest is content, because citing well what
    was not asked is no answer; and filler costs up to 0.1: never free, and never enough to cut an answer short.
    """

    name: str = "recommended"
    citation_weight: float = 0.4
    verification_reward: float = 1.0
    non_stop_penalty: bool = False
    format_gate: bool = True
    padding_penalty: float = 0.1

    def value(self, terms: RewardTerms) -> float:
        """The reward of an answer."""
        if self.non_stop_penalty and not terms.finished:
            return 0.0
        return self.verification_reward * SUMS[self.name](self, terms)


def additive(weights: RewardSum, terms: RewardTerms) -> float:
    """content + weight x citation."""
    return _content(weights, terms) + weights.citation_weight * terms.citation


def convex(weights: RewardSum, terms: RewardTerms) -> float:
    """(1 - weight) x content + weight x citation."""
    return (1 - weights.citation_weight) * _content(weights, terms) + weights.citation_weight * terms.citation


def recommended(weights: RewardSum, terms: RewardTerms) -> float:
    """gate x brevity x convex - padding penalty, as explained in `RewardSum`."""
    gate = float(terms.well_formed and terms.valid)
    return gate * terms.brevity * convex(weights, terms) - weights.padding_penalty * terms.padding


def brevity_of(words: int, evidence_words: int) -> float:
    """min(1, allowed words / words); allowed is half the number of evidence words, at least `MIN_BRIEF_WORDS`."""
    return min(1.0, max(MIN_BRIEF_WORDS, evidence_words / 2) / max(words, 1))


def _content(weights: RewardSum, terms: RewardTerms) -> float:
    """The content term; the citation score if nothing judges the content."""
    if weights.format_gate and not terms.well_formed:
        return 0.0
    return terms.citation if terms.content is None else terms.content


SUMS: dict[str, Callable[[RewardSum, RewardTerms], float]] = {
    "recommended": recommended,
    "additive": additive,
    "convex": convex,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """The figures of one answer against a table of stated claims, each from 0 to 1; all 0 for an answer without claims.

    - `precision`: the share of its citations that are right: their claim is asked for, and the table lists that snippet
      for it;
    - `recall`: the share of the claims asked for that it makes with a right citation;
    - `f1`: their harmonic mean;
    - `off_query`: the share of its claims that a cited snippet states but the question does not ask for.
    """

    precision: float
    recall: float
    f1: float
    off_query: float


def measure_against_table(answer: CitedAnswer, table: Sequence[StatedClaim]) -> TableFigures:
    """The figures of an answer against the table. Claims are matched by their normalised words: a paraphrase is not
    recognised, so this is for claims in the table's own wording."""
    by_claim = {normalise(stated.claim): stated for stated in table}
    right, covered, off_query = 0, set[str](), 0
    for claim in answer.claims:
        stated = by_claim.get(normalise(claim.text))
        right_ids = set(claim.ids) & set(stated.snippets) if stated else set[str]()
        if stated and stated.asked:
            right += len(right_ids)
            covered |= {stated.claim} if right_ids else set()
        elif right_ids:
            off_query += 1
    citations = sum(len(claim.ids) for claim in answer.claims)
    asked = {stated.claim for stated in table if stated.asked}
    precision = right / citations if citations else 0.0
    recall = len(covered) / len(asked) if asked else 0.0
    return TableFigures(
        precision=precision,
        recall=recall,
        f1=harmonic_mean(recall, precision),
        off_query=off_query / len(answer.claims) if answer.claims else 0.0,
    )
