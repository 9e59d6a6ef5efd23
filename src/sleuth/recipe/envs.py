"""What the policy talks to: `[stage.env]`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from sleuth.recipe.strict import FilePath, StrictModel


class SearchEnvRecipe(StrictModel):
    """A question, a search tool and a budget of searches."""

    kind: Literal["search"]
    dialect: str
    """The search protocol: its tags, wrappers and stop rule."""
    prompt: str
    """One of our own prompts by its name, such as "plain", or the path of a text file."""
    index: FilePath | None = None
    """The folder that `sleuth index` made."""
    retriever: Literal["index", "empty", "shuffled"] = "index"
    """What answers: the index, or a control arm ("empty" finds nothing, "shuffled" gives another query's passages)."""
    top_k: PositiveInt | None = None
    """Passages shown for a search. This and the next three: absent takes the dialect's own budget."""
    searches: NonNegativeInt | None = None
    """Searches allowed in an episode."""
    turn_tokens: PositiveInt | None = None
    """Tokens the policy may write in one turn."""
    passage_tokens: PositiveInt | None = None
    """Tokens of one passage that are shown; the rest of it is cut."""
    forced_search: bool = False
    """The environment opens the first search itself, so that the policy begins inside a query."""

    @model_validator(mode="after")
    def _can_search(self) -> Self:
        if self.index is None and self.retriever != "empty":
            raise ValueError(
                f"index is missing: retriever = {self.retriever!r} reads one; name the folder that `sleuth index` made"
            )
        if self.forced_search and self.searches == 0:
            raise ValueError("forced_search = true needs searches of 1 or more")
        return self


EnvRecipe = SearchEnvRecipe
