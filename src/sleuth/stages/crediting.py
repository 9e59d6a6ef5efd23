"""Searches paid by themselves, for what they made likelier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.dialects import Dialect
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.credit import CreditRecipe
from sleuth.render import Renderer
from sleuth.stages.gain import Gain, gains
from sleuth.types import Episode, Group, Score


def credited(
    groups: Sequence[Group],
    credit: CreditRecipe,
    model: PreTrainedModel,
    renderer: Renderer,
    dialect: Dialect,
    *,
    budget: int,
    temperature: float,
    ranks: Ranks = ALONE,
) -> tuple[list[Group], dict[str, float]]:
    """The groups with a credit for each search of each right episode, and the step's figures of it: the mean gain in
    nats, and the share of these searches that gained no more than the margin.

    What counts is the gain in words that were found: a policy with the habit of searching twice is as much surprised
    by the step it takes after a single search as by a missing fact. A wrong episode gets no credit: what its searches
    made likelier is not known to be worth anything. Ranks each read a stretch of the episodes.
    """
    right = [
        (episode, score)
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if score.parts.get("em") == 1
    ]
    told = [episode.trajectory for episode, _ in right]
    mine = told[ranks.share(len(told))]
    found = ranks.gathered(
        gains(model, renderer, dialect, mine, removed="search", budget=budget, temperature=temperature)
    )
    credits = {id(episode): _credit(of_episode, credit) for (episode, _), of_episode in zip(right, found, strict=True)}

    def with_credit(episode: Episode, score: Score) -> Score:
        return replace(score, credit={**score.credit, **credits.get(id(episode), {})})

    paid = [replace(group, scores=tuple(map(with_credit, group.episodes, group.scores))) for group in groups]
    values = [gain.found for of_episode in found for gain in of_episode]
    if not values:
        return paid, {}
    idle = [float(value <= credit.margin) for value in values]
    return paid, {"search_gain": fmean(values), "idle_searches": fmean(idle)}


def _credit(found: Sequence[Gain], credit: CreditRecipe) -> dict[int, float]:
    """Segment index of the turn that searched -> what it is paid."""
    return {gain.look.asked: credit.pays if gain.found > credit.margin else -credit.charges for gain in found}
