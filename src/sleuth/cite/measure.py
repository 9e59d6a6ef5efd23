"""Citation recall, precision and F1 of an answer from a judge's verdicts, and figures against an exact table of
claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.answers.match import normalise
from sleuth.cite.claims import CitedAnswer, Claim, EvidenceTexts
from sleuth.types import Case, ClaimSheet, StatedClaim

SUPPORTED = 0.5
"""The lowest verdict that counts as support."""

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

    recall: float = 0.0
    precision: float = 0.0
    f1: float = 0.0
    precision_concatenated: float = 0.0
    valid_ids: float = 0.0
    published: float = 0.0
    claims: int = 0
    supported: tuple[Claim, ...] = ()


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
            selections += [[id_] for id_ in known] + [_others(id_, known) for id_ in known]
        for ids in selections:
            cases.setdefault(_case(claim, ids, evidence), ids)
    return cases


def measure(answer: CitedAnswer, evidence: EvidenceTexts, support: Support) -> Citations:
    """The figures of an answer; all 0 if it has no claims. `support` holds every case of `sheets_of`."""
    if not answer.claims:
        return Citations()
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
    known, together = _known(claim, evidence), _recall(claim, evidence, support)
    if together < SUPPORTED or len(known) == 1:
        return int(together >= SUPPORTED)
    return sum(
        support[_case(claim, [id_], evidence)] >= SUPPORTED
        or support[_case(claim, _others(id_, known), evidence)] < together
        for id_ in known
    )


def _known(claim: Claim, evidence: EvidenceTexts) -> list[str]:
    return [id_ for id_ in claim.ids if id_ in evidence]


def _others(id_: str, ids: Sequence[str]) -> list[str]:
    return [other for other in ids if other != id_]


def _case(claim: Claim, ids: Sequence[str], evidence: EvidenceTexts) -> Case:
    """The case with its texts sorted by id, so that no verdict depends on the order of citations."""
    return Case(claim=claim.text, evidence="\n\n".join(evidence[id_] for id_ in sorted(ids)))


def measure_against_table(answer: CitedAnswer, table: Sequence[StatedClaim]) -> dict[str, float]:
    """The figures of an answer against a table of stated claims, each from 0 to 1; all 0 for an answer without claims.
    Claims are matched by their normalised words: this is for claims in the table's own wording.

    - `claim_precision`: the share of its citations that are right: their claim is asked for, and the table lists that
      snippet for it;
    - `claim_recall`: the share of the claims asked for that it makes with a right citation;
    - `claim_f1`: their harmonic mean;
    - `off_query`: the share of its claims that a cited snippet states but the question does not ask for.
    """
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
    asked = {stated.claim for stated in table if stated.asked}
    precision = right / max(1, sum(len(claim.ids) for claim in answer.claims))
    recall = len(covered) / max(1, len(asked))
    return {
        "claim_precision": precision,
        "claim_recall": recall,
        "claim_f1": harmonic_mean(recall, precision),
        "off_query": off_query / max(1, len(answer.claims)),
    }
