"""How well an answer cites: recall, precision and F1, from what a judge said of its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.rewards.citation.claims import CitedAnswer, Claim
from sleuth.types import Case

SUPPORTED = 0.5
"""From here on a verdict is support."""

EvidenceTexts = Mapping[str, str]
"""What can be cited, by its id: `{"a1": "Ada Voss was born in Tarn."}`."""

Support = Mapping[Case, float]
"""How far the evidence of each case supports its claim, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citations:
    """The figures of one answer, each from 0 to 1 but for the number of `claims`.

    - `recall`: the mean over claims of how far all that a claim cites, taken together, supports it;
    - `precision`: the share of citations that are needed. As in ALCE (arXiv:2305.14627) one is not where its claim is
      unsupported, or where it alone does not support the claim and the others do without it; an id that does not exist
      never is;
    - `f1`: their harmonic mean;
    - `precision_concatenated`: the share of claims that what they cite supports at all, taken together: what DR Tulu
      (arXiv:2511.19399) takes for precision, and what ten ids where one would do cannot hurt;
    - `valid_ids`: the share of the different ids that exist;
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


def cases_of(answer: CitedAnswer, evidence: EvidenceTexts) -> list[Case]:
    """All that a judge must be asked: each claim with all that it cites and, of several, each alone and left out."""
    cases = []
    for claim in answer.claims:
        known = _known(claim, evidence)
        if known:
            cases.append(_case(claim, known, evidence))
        if len(known) > 1:
            cases += [_case(claim, [id_], evidence) for id_ in known]
            cases += [_case(claim, _without(id_, known), evidence) for id_ in known]
    return list(dict.fromkeys(cases))


def measure(answer: CitedAnswer, evidence: EvidenceTexts, support: Support) -> Citations:
    """The figures of an answer; all are 0 where it claims nothing. `support` holds every case of `cases_of`."""
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
    at_all = [float(recall >= SUPPORTED) for recall in recalls]
    needed = sum(_needed(claim, evidence, support) for claim in answer.claims)
    recall, precision = fmean(recalls), needed / sum(len(claim.ids) for claim in answer.claims)
    valid_ids = len(answer.ids & evidence.keys()) / len(answer.ids)
    return Citations(
        recall=recall,
        precision=precision,
        f1=harmonic_mean(recall, precision),
        precision_concatenated=fmean(at_all),
        valid_ids=valid_ids,
        published=0.6 * fmean(map(harmonic_mean, recalls, at_all)) + 0.4 * valid_ids,
        claims=len(answer.claims),
        supported=tuple(claim for claim, enough in zip(answer.claims, at_all, strict=True) if enough),
    )


def harmonic_mean(recall: float, precision: float) -> float:
    """F1; 0 where both are."""
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _recall(claim: Claim, evidence: EvidenceTexts, support: Support) -> float:
    known = _known(claim, evidence)
    return support[_case(claim, known, evidence)] if known else 0.0


def _needed(claim: Claim, evidence: EvidenceTexts, support: Support) -> int:
    """How many of a claim's citations are needed."""
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
    """The texts stand in the order of their ids, so that no verdict can depend on the order of citing."""
    return Case(claim=claim.text, evidence="\n\n".join(evidence[id_] for id_ in sorted(ids)))
