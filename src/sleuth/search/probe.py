"""Measures whether a model uses what it retrieves: the same questions without a search, without results, with results
of other questions, and the gain of each search and passage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedModel

from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.intervals import Measured, bootstrap_mean, paired_bootstrap, share
from sleuth.family import load_named
from sleuth.learn.policy import TokenBudget
from sleuth.render import Renderer
from sleuth.search.env import EmptyRetriever, ShuffledRetriever
from sleuth.search.search_gain import Removed, SearchGain, require_text_dialect, search_gains
from sleuth.search.setting import SearchSetting
from sleuth.types import Episode, Score, SleuthError, Task

BASE_ARM = "as it is"
EM_KINDS = {"em": None, "em_one_hop": "one_hop", "em_two_hop": "two_hop"}
MARGIN = 1.0
"""Nats. A search whose results made later text likelier by no more than this was idle."""
BUDGET = 4_096
"""Distinct tokens per forward pass."""

Answered = Sequence[tuple[Episode, Score]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of `probe`. `arms` has the figures of each arm, with `difference`, its exact match minus that of
    the base arm, paired by question; `searches`, `passages` and, of a refiner, `snippets` have the gains of groups;
    `records` has every gain."""

    arms: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    searches: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    passages: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    snippets: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values, without empty tables."""
        tables = {"arms": self.arms, "searches": self.searches, "passages": self.passages, "snippets": self.snippets}
        return {
            name: {row: {key: figure.as_json() for key, figure in figures.items()} for row, figures in table.items()}
            for name, table in tables.items()
            if table
        } | {"margin": MARGIN, "records": list(self.records)}


def probe(session: EvalSession, tasks: Sequence[Task], *, weights: PreTrainedModel | None = None) -> ProbeResult:
    """What the `probe` of the session's setting measures, by gains under `weights` where the model of the session is on
    a server. Raises SleuthError, before anything is asked, if it has none or cannot measure this dialect."""
    setting = session.setting
    if not setting.probe:
        raise SleuthError(f"the dialect {setting.dialect.name!r} does not search: there is nothing to probe")
    return load_named(setting.probe)(session, tasks, weights or session.weights)


def probe_searches(session: EvalSession, tasks: Sequence[Task], weights: PreTrainedModel) -> ProbeResult:
    """Answers the questions in every arm, then computes the gains of the base arm's searches and passages. Raises
    SleuthError for a dialect in messages of a chat template, before anything is asked."""
    setting = session.setting
    assert isinstance(setting, SearchSetting)  # it names this function
    require_text_dialect(setting.dialect)
    arms = dict(control_arms(setting, tasks))
    answered = {name: replace(session, setting=arm).ask(tasks, name) for name, arm in arms.items()}
    base = answered[BASE_ARM]
    budget = TokenBudget(BUDGET)
    by_search = _gain_cases(session, weights, base, "search", budget)
    by_passage = _gain_cases(session, weights, base, "passage", budget)
    return ProbeResult(
        arms={name: _arm_figures(of_arm, base) for name, of_arm in answered.items()},
        searches=_group_figures(by_search, _search_groups),
        passages=_with_wins(_group_figures(by_passage, _passage_groups), by_passage),
        records=[_record(*case) for case in (*by_search, *by_passage)],
    )


def control_arms(setting: SearchSetting, tasks: Sequence[Task]) -> Iterator[tuple[str, SearchSetting]]:
    """The setting itself, and without a search, without results, and with those of other questions."""
    yield BASE_ARM, setting
    yield "closed book", replace(setting, closed_book=True, forced_search=False)
    yield "nothing found", replace(setting, retriever=EmptyRetriever())
    questions = [task.question for task in tasks]
    yield "others' passages", replace(setting, retriever=ShuffledRetriever(setting.retriever, questions))


def _arm_figures(answered: Answered, base: Answered) -> dict[str, Measured]:
    figures = {
        key: share([score.parts.get("em") for _, score in of_kind], [episode.task.id for episode, _ in of_kind])
        for key, kind in EM_KINDS.items()
        if (of_kind := [pair for pair in answered if kind in (None, pair[0].task.kind)])
    }
    clusters = [episode.task.id for episode, _ in answered]
    # None where the retriever failed, since the policy might have searched again
    made = [one.trajectory.searches if one.trajectory.stop != "failed" else None for one, _ in answered]
    figures["searches_mean"] = bootstrap_mean(made, clusters)
    if answered is not base:
        ours, theirs = ([score.parts.get("em") for _, score in arm] for arm in (answered, base))
        figures["difference"] = paired_bootstrap(ours, theirs, clusters)
    return figures


GainCase = tuple[Episode, Score, SearchGain]


def _gain_cases(
    session: EvalSession, weights: PreTrainedModel, answered: Answered, removed: Removed, budget: TokenBudget
) -> list[GainCase]:
    by_episode = budget.run(
        lambda tokens: search_gains(
            weights,
            Renderer(session.tokenizer, session.setting.dialect.tags),
            session.setting.dialect,
            [episode.trajectory for episode, _ in answered],
            removed=removed,
            budget=tokens,
        )
    )
    return [
        (episode, score, gain) for (episode, score), gains in zip(answered, by_episode, strict=True) for gain in gains
    ]


def _search_groups(episode: Episode, score: Score, gain: SearchGain) -> Iterator[str]:
    yield "all"
    kind = episode.task.kind.replace("_", "-") or "question"
    if score.parts.get("em") == 1:
        yield f"right, {kind}, search {gain.number + 1}"
    else:
        yield "not right"


def _passage_groups(episode: Episode, score: Score, gain: SearchGain) -> Iterator[str]:
    gold = episode.task.gold_passages
    if gold and gain.passage is not None:
        yield "gold passages" if gain.passage.id in gold else "other passages"
    else:
        yield "passages"


def _with_wins(groups: dict[str, dict[str, Measured]], cases: Sequence[GainCase]) -> dict[str, dict[str, Measured]]:
    """The groups, with the share of searches in which a gold passage gained more than any other, among those that
    showed both before a right answer."""
    searches: dict[tuple[int, int], tuple[Task, list[float], list[float]]] = {}
    for episode, score, gain in cases:
        if score.parts.get("em") == 1 and gain.passage is not None:
            task = episode.task
            _, gold, others = searches.setdefault((id(episode), gain.number), (task, [], []))
            (gold if gain.passage.id in task.gold_passages else others).append(gain.value)
    wins = [(max(gold) > max(others), task.id) for task, gold, others in searches.values() if gold and others]
    if wins:
        groups["gold passages"]["ahead"] = share([float(won) for won, _ in wins], [task for _, task in wins])
    return groups


def _group_figures(
    cases: Sequence[GainCase], groups: Callable[[Episode, Score, SearchGain], Iterator[str]]
) -> dict[str, dict[str, Measured]]:
    """By group: the mean gain, its parts from retrieved words and from the last turn, and the share of idle ones;
    clustered by question."""
    members: dict[str, list[GainCase]] = {}
    for case in cases:
        for group in groups(*case):
            members.setdefault(group, []).append(case)
    return {group: _gain_figures(members[group]) for group in sorted(members)}


def _gain_figures(cases: Sequence[GainCase]) -> dict[str, Measured]:
    clusters = [episode.task.id for episode, _, _ in cases]
    return {
        "gain": bootstrap_mean([gain.value for _, _, gain in cases], clusters),
        "found_gain": bootstrap_mean([gain.retrieved for _, _, gain in cases], clusters),
        "answer_gain": bootstrap_mean([gain.answer for _, _, gain in cases], clusters),
        "idle": share([float(gain.retrieved <= MARGIN) for _, _, gain in cases], clusters),
    }


def _record(episode: Episode, score: Score, gain: SearchGain) -> dict[str, Any]:
    return {
        "id": episode.task.id,
        "sample": episode.sample,
        "em": score.parts.get("em"),
        "search": gain.number,
        "query": episode.trajectory.segments[gain.search.query].text,
        "passage": None if gain.passage is None else gain.passage.id,
        "gain": gain.value,
        "found_gain": gain.retrieved,
        "answer_gain": gain.answer,
        "tokens": gain.tokens,
    }
