"""Measures whether a refiner uses what it cites: the gain of each snippet to each claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from transformers import PreTrainedModel

from sleuth.cite.citation_gain import citation_gains
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.learn.token_budget import TokenBudget
from sleuth.render import Renderer
from sleuth.search.probe import BASE_ARM, BUDGET, ProbeResult
from sleuth.types import Task


def probe_citations(session: EvalSession, tasks: Sequence[Task], weights: PreTrainedModel) -> ProbeResult:
    """Over all claims that cite, clustered by question: the gain of cited snippets and of the others, and how often a
    cited one gained more than any other."""
    answered = session.ask(tasks, BASE_ARM)
    episodes = [episode for episode, _ in answered]
    renderer = Renderer(session.tokenizer, session.setting.dialect.tags)
    by_episode = TokenBudget(BUDGET).run(
        lambda tokens: citation_gains(weights, renderer, session.setting, episodes, budget=tokens)
    )
    pairs = [(episode.task.id, gain) for episode, gains in zip(episodes, by_episode, strict=True) for gain in gains]
    claims: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for at, gains in enumerate(by_episode):
        for gain in gains:
            claims.setdefault((at, gain.number), ([], []))[not gain.cited].append(gain.value)
    wins = {key: float(max(own) > max(others)) for key, (own, others) in claims.items() if own and others}
    groups = {"cited": [pair for pair in pairs if pair[1].cited], "not cited": [p for p in pairs if not p[1].cited]}
    snippets: dict[str, dict[str, Measured]] = {
        name: {"gain": bootstrap_mean([gain.value for _, gain in group], [task for task, _ in group])}
        for name, group in groups.items()
        if group
    }
    if wins:
        snippets["cited"]["ahead"] = share([*wins.values()], [episodes[at].task.id for at, _ in wins])
    return ProbeResult(snippets=snippets, records=[{"id": task, **asdict(gain)} for task, gain in pairs])
