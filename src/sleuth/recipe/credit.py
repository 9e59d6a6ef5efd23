"""What a search, or a citation, is paid by itself: `[stage.credit]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import NonNegativeFloat

from sleuth.recipe.strict import StrictModel, combination


class CreditRecipe(StrictModel):
    """Searches, or citations, are paid or charged by what they made likelier, in nats, as the policy sees it; added to
    the advantage of the tokens that asked, or that cite."""

    kind: Literal["search_gain", "citation_gain"]
    """`search_gain`, of right episodes: the words that a search found, wherever the policy wrote them later, with what
    it found and without it. `citation_gain`: a claim (and the thought before it), with the snippet that it cites and
    without it; of several the one that gains most."""
    margin: NonNegativeFloat = 1.0
    """Nats: what gained more mattered."""
    pays: NonNegativeFloat = 0.0
    """What is added where it mattered."""
    charges: NonNegativeFloat = 0.0
    """What is taken where it did not."""

    @combination
    def _does_something(self) -> Iterator[str]:
        if not self.pays and not self.charges:
            yield "pays and charges are both 0: nothing would be credited; set one, such as charges = 0.2"
