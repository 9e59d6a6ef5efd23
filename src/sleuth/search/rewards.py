"""The reward for answers that quote what was found, and credit for single searches."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from sleuth.answers.answer import cited_passage_holds, given_answer
from sleuth.answers.tables import EpisodeRewardRecipe
from sleuth.dialect import DIALECTS, Dialect
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.grpo import CreditFields
from sleuth.types import Episode, StepFigure


def cited_answer(episode: Episode, dialect: Dialect) -> float:
    """1 if the answer is right by strict exact match, and what it quotes from a passage contains it."""
    answer, outcome = given_answer(episode, dialect)
    if answer is None or outcome != "correct":
        return 0.0
    return float(cited_passage_holds(answer, episode.trajectory, dialect))


class CitedAnswerRecipe(EpisodeRewardRecipe):
    """1 for a golden answer that quotes words from a passage, as far as the policy was shown it, which contain the
    answer. For dialects whose answers quote, such as "reading"."""

    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "cited_answer",
            "The answer is a golden one, and what it quotes from a passage contains it.",
            "Right and cited",
            "share of episodes",
            top=1.0,
        ),
    )
    compares_answers: ClassVar[bool] = True
    kind: Literal["cited_answer"]
    measure = staticmethod(cited_answer)

    def misfit(self, env: EnvFields) -> str | None:
        """Also why no answer cites."""
        if (other := super().misfit(env)) is not None:
            return other
        name, citing = getattr(env, "dialect", ""), [one.name for one in DIALECTS.values() if one.cites]
        if name in citing or (name and name not in DIALECTS):  # one that does not exist is reported where it is named
            return None
        kind, dialects = getattr(env, "kind", ""), '" or "'.join(citing)
        where, also = (f'env.dialect = "{name}"', "") if name else (f'env.kind = "{kind}"', 'env.kind = "search" and ')
        return f'needs answers that quote a passage, which {where} has not; set {also}env.dialect = "{dialects}"'


class SearchGainRecipe(CreditFields):
    """Credit for the tokens of a query, in right episodes: by the log-probability of the words that the search found,
    wherever the policy wrote them later, with the search's results less without them."""

    credited: ClassVar[tuple[str, str]] = "search", "searches"
    kind: Literal["search_gain"]

    def require_dialect(self, dialect: Dialect) -> None:
        from sleuth.search.search_gain import require_text_dialect

        require_text_dialect(dialect)

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.search.credit_assignment import SearchCredit

        return [SearchCredit(self, inputs)]
