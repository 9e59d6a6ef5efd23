"""Searches and citations paid by themselves, for what they made likelier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.evaluation.citation_gain import CitationGain, citation_gains
from sleuth.evaluation.search_gain import Gain, gains
from sleuth.factories import Setting
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import CreditRecipe
from sleuth.render import Renderer
from sleuth.types import Credit, Episode, Group, Score

IDLE = {"search_gain": "idle_searches", "citation_gain": "idle_citations"}
"""What those are called that gained too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the tokens of a search, or of a citation, `gained` in nats: those from `begin` to before `end` (None: the
    last) of a segment, of which the first `thought` tokens are the thought that the claim was written off."""

    gained: float
    segment: int
    begin: int = 0
    end: int | None = None
    thought: int = 0

    def paid(self, recipe: CreditRecipe) -> Credit:
        """More than the margin is paid, no more is charged."""
        value = recipe.bonus if self.gained > recipe.margin else -recipe.penalty
        return Credit(segment=self.segment, value=value, begin=self.begin, end=self.end)


def assign_credit(
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
    the searches, or citations, that gained no more than the margin. Ranks each read a stretch of the episodes.

    A wrong episode gets no credit for its searches: what they made likelier is not known to be worth anything. A claim
    is what it is, whatever the rest of its answer is worth, if that has a score.
    """
    of_searches = recipe.kind == "search_gain"
    episodes = [
        episode
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if (score.parts.get("em") == 1 if of_searches else score.value is not None)
    ]
    mine = episodes[ranks.share(len(episodes))]
    reading = {"budget": budget, "temperature": temperature}
    if of_searches:
        told = [episode.trajectory for episode in mine]
        read = _of_searches(gains(model, renderer, setting.dialect, told, removed="search", **reading))
    else:
        read = _of_citations(citation_gains(model, renderer, setting, mine, **reading))
    found = ranks.all_gather(read)
    credits = {id(episode): _credits(of_episode, recipe) for episode, of_episode in zip(episodes, found, strict=True)}

    def with_credits(episode: Episode, score: Score) -> Score:
        return replace(score, credits=(*score.credits, *credits.get(id(episode), ())))

    paid = [replace(group, scores=tuple(map(with_credits, group.episodes, group.scores))) for group in groups]
    gained = [worth.gained for of_episode in found for worth in of_episode]
    if not gained:
        return paid, {}
    idle = fmean(float(value <= recipe.margin) for value in gained)
    return paid, {recipe.kind: fmean(gained), IDLE[recipe.kind]: idle}


def _credits(of_episode: Sequence[Worth], recipe: CreditRecipe) -> tuple[Credit, ...]:
    """Of each search or claim. A thought that claims were written off is paid as they are on average: what they cite
    was chosen there."""
    paid = tuple(worth.paid(recipe) for worth in of_episode)
    if not any(worth.thought for worth in of_episode):
        return paid
    mean = fmean(credit.value for credit in paid)
    return *paid, Credit(segment=of_episode[0].segment, value=mean, end=of_episode[0].thought)


def _of_searches(found: Sequence[Sequence[Gain]]) -> list[list[Worth]]:
    """What counts is the gain in words that were found: a policy with the habit of searching twice is as much surprised
    by the step it takes after a single search as by a missing fact."""
    return [[Worth(gained=gain.found, segment=gain.look.asked) for gain in of_episode] for of_episode in found]


def _of_citations(found: Sequence[Sequence[CitationGain]]) -> list[list[Worth]]:
    """Of each claim that cites, the gain of the snippet that did most for it, of those that it cites."""
    worths = []
    for of_episode in found:
        claims = groupby((gain for gain in of_episode if gain.cited), key=lambda gain: gain.number)
        best = [max(of_claim, key=lambda gain: gain.value) for _, of_claim in claims]
        worths.append(
            [
                Worth(gained=gain.value, segment=gain.segment, begin=gain.begin, end=gain.end, thought=gain.thought)
                for gain in best
            ]
        )
    return worths
