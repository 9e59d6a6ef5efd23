"""How well an answer cites: recall, precision and F1, from what a judge said of its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sleuth.rewards.citation.claims import CitedAnswer, Claim
from sleuth.rewards.match import normalise
from sleuth.types import Case, StatedClaim

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


# The published cards name the parts and their weights, not the sum: `additive` and `convex` are the two that fit. The
# difference matters. An additive citation term is worth as much beside a wrong answer as beside a right one, so that a
# group in which only the citations vary is taught as hard as one in which the answer does; a convex one bounds that,
# and neither keeps a policy from being paid for its form alone.
#
# Ours, `recommended`, is a gate times brevity times a convex mix, less a small penalty: nothing is paid unless there is
# a well-formed answer whose ids all exist, so that no citation can be guessed; an answer that copies its evidence is
# paid the less the longer it is; 0.6 of the rest is content, because an answer that cites well what was not asked is no
# answer; and filler costs up to a tenth, so that it is never free, and never so much that an answer is cut short for
# it.

A_FEW = 30
"""Words that are brief whatever they digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What is known of one answer. `content` is None where nothing judges it; `finished` is false where the token
    budget cut it off; `well_formed` where nothing but one closed answer, behind a thought where there should be one,
    was written; `valid` where it abstains, or cites only ids that exist, and at least one; `brevity` is 1 for a digest
    and less for what is longer than one (`brevity_of`)."""

    content: float | None
    citation: float
    padding: float
    well_formed: bool
    valid: bool
    finished: bool
    brevity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSum:
    """`RewardSum(name="additive", citation_weight=0.2, verification_reward=10.0)`: as S2's card has it.

    `format_gate` pays content only where the answer is well-formed; `non_stop_penalty` pays nothing at all where the
    budget cut it off; `verification_reward` multiplies the sum (with advantages over sigma it changes nothing, with
    centered ones the step's size); `padding_penalty` is what an answer of nothing but filler loses.
    """

    name: str = "recommended"
    citation_weight: float = 0.4
    verification_reward: float = 1.0
    non_stop_penalty: bool = False
    format_gate: bool = True
    padding_penalty: float = 0.1

    def of(self, graded: Graded) -> float:
        """The worth of an answer."""
        if self.non_stop_penalty and not graded.finished:
            return 0.0
        return self.verification_reward * SUMS[self.name](self, graded)


def additive(terms: RewardSum, graded: Graded) -> float:
    """content + weight x citation."""
    return _content(terms, graded) + terms.citation_weight * graded.citation


def convex(terms: RewardSum, graded: Graded) -> float:
    """(1 - weight) x content + weight x citation."""
    return (1 - terms.citation_weight) * _content(terms, graded) + terms.citation_weight * graded.citation


def recommended(terms: RewardSum, graded: Graded) -> float:
    """gate x brevity x convex - padding penalty; see above."""
    gate = float(graded.well_formed and graded.valid)
    return gate * graded.brevity * convex(terms, graded) - terms.padding_penalty * graded.padding


def brevity_of(words: int, evidence_words: int) -> float:
    """1 for an answer of at most half as many words as its evidence has, or of a few; what is longer, inversely."""
    return min(1.0, max(A_FEW, evidence_words / 2) / max(words, 1))


def _content(terms: RewardSum, graded: Graded) -> float:
    """Where nothing judges the content, the citation score stands in for it."""
    if terms.format_gate and not graded.well_formed:
        return 0.0
    return graded.citation if graded.content is None else graded.content


SUMS: dict[str, Callable[[RewardSum, Graded], float]] = {
    "recommended": recommended,
    "additive": additive,
    "convex": convex,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabled:
    """The figures of one answer, each from 0 to 1; all are 0 for an answer that claims nothing.

    - `precision`: the share of its citations that are right: their claim is asked for, and the table has that snippet
      for it;
    - `recall`: the share of the claims asked for that it makes with a right citation;
    - `f1`: their harmonic mean;
    - `off_query`: the share of its claims that a cited snippet states, though nobody asked.
    """

    precision: float
    recall: float
    f1: float
    off_query: float


def compare(answer: CitedAnswer, table: Sequence[StatedClaim]) -> Tabled:
    """The figures of an answer against the table. Claims are the same where their normalised words are: a paraphrase is
    not found, so this is for claims in the table's own wording."""
    known = {normalise(stated.claim): stated for stated in table}
    right, told, off_query = 0, set[str](), 0
    for claim in answer.claims:
        stated = known.get(normalise(claim.text))
        stating = set(claim.ids) & set(stated.snippets) if stated else set[str]()
        if stated and stated.asked:
            right += len(stating)
            told |= {stated.claim} if stating else set()
        elif stating:
            off_query += 1
    citations = sum(len(claim.ids) for claim in answer.claims)
    asked = {stated.claim for stated in table if stated.asked}
    precision = right / citations if citations else 0.0
    recall = len(told) / len(asked) if asked else 0.0
    return Tabled(
        precision=precision,
        recall=recall,
        f1=harmonic_mean(recall, precision),
        off_query=off_query / len(answer.claims) if answer.claims else 0.0,
    )
