"""Credit for single searches and citations, by how much likelier they made what the policy wrote with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.cite.citation_gain import CitationGain, citation_gains
from sleuth.episodes.setting import Setting
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import CreditRecipe
from sleuth.render import Renderer
from sleuth.search.search_gain import SearchGain, search_gains
from sleuth.types import Credit, Episode, Group, Score

IDLE = {"search_gain": "idle_searches", "citation_gain": "idle_citations"}
"""The figure of the share that gained no more than the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedSpan:
    """The gain in nats of a search or a citation. Its tokens are those of a segment from `begin` to before `end` (None:
    to the last); the segment's first `thought` tokens are the thought from which its claims were written."""

    gain: float
    segment: int
    begin: int = 0
    end: int | None = None
    thought: int = 0

    def credit(self, recipe: CreditRecipe) -> Credit:
        """The bonus for a gain above the margin, else the penalty."""
        value = recipe.bonus if self.gain > recipe.margin else -recipe.penalty
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
    the searches, or citations, that gained no more than the margin. Each rank computes a share of the episodes.

    Only episodes with the right answer get credit for searches: what other searches made likelier may be wrong.
    Citations get credit in every episode that has a score.
    """
    of_searches = recipe.kind == "search_gain"
    episodes = [
        episode
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if (score.parts.get("em") == 1 if of_searches else score.value is not None)
    ]
    mine = episodes[ranks.share(len(episodes))]
    options = {"budget": budget, "temperature": temperature}
    if of_searches:
        trajectories = [episode.trajectory for episode in mine]
        spans = _of_searches(search_gains(model, renderer, setting.dialect, trajectories, removed="search", **options))
    else:
        spans = _of_citations(citation_gains(model, renderer, setting, mine, **options))
    found = ranks.all_gather(spans)
    credits = {id(episode): _credits(of_episode, recipe) for episode, of_episode in zip(episodes, found, strict=True)}

    def with_credits(episode: Episode, score: Score) -> Score:
        return replace(score, credits=(*score.credits, *credits.get(id(episode), ())))

    credited = [replace(group, scores=tuple(map(with_credits, group.episodes, group.scores))) for group in groups]
    values = [span.gain for of_episode in found for span in of_episode]
    if not values:
        return credited, {}
    idle = fmean(float(value <= recipe.margin) for value in values)
    return credited, {recipe.kind: fmean(values), IDLE[recipe.kind]: idle}


def _credits(of_episode: Sequence[CreditedSpan], recipe: CreditRecipe) -> tuple[Credit, ...]:
    """One for each search or claim. The thought before the claims gets their mean: there the policy chose what to
    cite."""
    credits = tuple(span.credit(recipe) for span in of_episode)
    if not any(span.thought for span in of_episode):
        return credits
    mean = fmean(credit.value for credit in credits)
    return *credits, Credit(segment=of_episode[0].segment, value=mean, end=of_episode[0].thought)


def _of_searches(found: Sequence[Sequence[SearchGain]]) -> list[list[CreditedSpan]]:
    """By the gain of words that were found. Not of all words: a policy that usually searches twice is as surprised by
    its next step after a single search as by a missing fact."""
    return [
        [CreditedSpan(gain=gain.retrieved, segment=gain.search.query) for gain in of_episode] for of_episode in found
    ]


def _of_citations(found: Sequence[Sequence[CitationGain]]) -> list[list[CreditedSpan]]:
    """By claim, the largest gain of the snippets that it cites."""
    spans = []
    for of_episode in found:
        claims = groupby((gain for gain in of_episode if gain.cited), key=lambda gain: gain.number)
        best = [max(of_claim, key=lambda gain: gain.value) for _, of_claim in claims]
        spans.append(
            [
                CreditedSpan(
                    gain=gain.value, segment=gain.segment, begin=gain.begin, end=gain.end, thought=gain.thought
                )
                for gain in best
            ]
        )
    return spans
