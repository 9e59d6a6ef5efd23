"""What a search is paid by itself: `[stage.credit]`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeFloat, model_validator

from sleuth.recipe.strict import StrictModel


class CreditRecipe(StrictModel):
    """Searches of right episodes are paid or charged by what they made likelier: the log-probability of the words that
    a search found, wherever the policy wrote them later, with what it found minus without it. Added to the advantage of
    the tokens of its turn."""

    kind: Literal["search_gain"]
    margin: NonNegativeFloat = 1.0
    """Nats: a search mattered if it gained more."""
    pays: NonNegativeFloat = 0.0
    """What a search that mattered gets."""
    charges: NonNegativeFloat = 0.0
    """What a search that did not loses."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.pays and not self.charges:
            raise ValueError("pays and charges are both 0: nothing would be credited; set one, such as charges = 0.2")
        return self
