"""Searches and citations paid by themselves, for what they made likelier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Protocol

from transformers import PreTrainedModel

from sleuth.build import Setting
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.credit import CreditRecipe
from sleuth.render import Renderer
from sleuth.stages.citation_gain import CitationGain, citation_gains
from sleuth.stages.gain import gains
from sleuth.types import Credit, Episode, Group, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the tokens of a search, or of a citation, `gained` in nats: those from `begin` to before `end` (None: the
    last) of a segment."""

    gained: float
    segment: int
    begin: int = 0
    end: int | None = None


def credited(
    groups: Sequence[Group],
    recipe: CreditRecipe,
    model: PreTrainedModel,
    renderer: Renderer,
    setting: Setting,
    *,
    budget: int,
    temperature: float,
    ranks: Ranks = ALONE,
) -> tuple[list[Group], dict[str, float]]:
    """The groups with the credits of their episodes, and the step's figures of them: the mean gain, and the share of
    the searches, or citations, that gained no more than the margin. Ranks each read a stretch of the episodes."""
    read, idle, pays = KINDS[recipe.kind]
    scored = [pair for group in groups for pair in zip(group.episodes, group.scores, strict=True)]
    episodes = [episode for episode, score in scored if pays(score)]
    mine = episodes[ranks.share(len(episodes))]
    found = ranks.gathered(read(model, renderer, setting, mine, budget=budget, temperature=temperature))
    credits = {
        id(episode): tuple(_paid(worth, recipe) for worth in of_episode)
        for episode, of_episode in zip(episodes, found, strict=True)
    }

    def with_credits(episode: Episode, score: Score) -> Score:
        return replace(score, credits=(*score.credits, *credits.get(id(episode), ())))

    paid = [replace(group, scores=tuple(map(with_credits, group.episodes, group.scores))) for group in groups]
    gained = [worth.gained for of_episode in found for worth in of_episode]
    if not gained:
        return paid, {}
    return paid, {recipe.kind: fmean(gained), idle: fmean(float(value <= recipe.margin) for value in gained)}


def _paid(worth: Worth, recipe: CreditRecipe) -> Credit:
    value = recipe.pays if worth.gained > recipe.margin else -recipe.charges
    return Credit(segment=worth.segment, value=value, begin=worth.begin, end=worth.end)


def worth_of_searches(
    model: PreTrainedModel,
    renderer: Renderer,
    setting: Setting,
    episodes: Sequence[Episode],
    *,
    budget: int,
    temperature: float,
) -> list[list[Worth]]:
    """By episode. What counts is the gain in words that were found: a policy with the habit of searching twice is as
    much surprised by the step it takes after a single search as by a missing fact."""
    told = [episode.trajectory for episode in episodes]
    found = gains(model, renderer, setting.dialect, told, removed="search", budget=budget, temperature=temperature)
    return [[Worth(gained=gain.found, segment=gain.look.asked) for gain in of_episode] for of_episode in found]


def worth_of_citations(
    model: PreTrainedModel,
    renderer: Renderer,
    setting: Setting,
    episodes: Sequence[Episode],
    *,
    budget: int,
    temperature: float,
) -> list[list[Worth]]:
    """By episode, of each claim that cites: the gain of the snippet that did most for it, of those that it cites."""
    found = citation_gains(model, renderer, setting, episodes, budget=budget, temperature=temperature)
    return [
        [_best([*of_claim]) for _, of_claim in groupby(_cited(of_episode), key=lambda gain: gain.number)]
        for of_episode in found
    ]


def _cited(gains_of_episode: Sequence[CitationGain]) -> Iterator[CitationGain]:
    return (gain for gain in gains_of_episode if gain.cited)


def _best(of_claim: Sequence[CitationGain]) -> Worth:
    """What a claim gained by the citation that did most for it."""
    best = max(of_claim, key=lambda gain: gain.value)
    return Worth(gained=best.value, segment=best.segment, begin=best.begin, end=best.end)


def is_right(score: Score) -> bool:
    """A wrong episode gets no credit: what its searches made likelier is not known to be worth anything."""
    return score.parts.get("em") == 1


def is_there(score: Score) -> bool:
    """A claim is what it is, whatever the rest of the answer is worth."""
    return score.value is not None


class Reading(Protocol):
    """Tells, by episode, what the tokens that may be paid have gained."""

    def __call__(
        self,
        model: PreTrainedModel,
        renderer: Renderer,
        setting: Setting,
        episodes: Sequence[Episode],
        /,
        *,
        budget: int,
        temperature: float,
    ) -> list[list[Worth]]: ...


KINDS: dict[str, tuple[Reading, str, Callable[[Score], bool]]] = {
    "search_gain": (worth_of_searches, "idle_searches", is_right),
    "citation_gain": (worth_of_citations, "idle_citations", is_there),
}
"""By the name that a recipe gives them: who reads, what those are called that gained too little, whose episodes are
paid."""
