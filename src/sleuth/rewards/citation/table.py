"""An answer compared with an exact table of what its evidence states: what no judge had a part in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.rewards.citation.claims import CitedAnswer
from sleuth.rewards.citation.measure import harmonic_mean
from sleuth.rewards.match import normalise
from sleuth.types import Stated


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


def compare(answer: CitedAnswer, table: Sequence[Stated]) -> Tabled:
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
