"""Whether a model uses what it looks up: the same questions without searching, with results that say nothing, and what
each search and each passage was worth to it; or, of a refiner, what snippets were worth to its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sleuth.evaluation.citation_gain import citation_gains
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.search_gain import Gain, Removed, gains, require_text
from sleuth.factories import RefineSetting, SearchSetting
from sleuth.metrics.intervals import Measured, bootstrap_mean, paired_bootstrap, share
from sleuth.render import Renderer
from sleuth.retrieval.control import EmptyRetriever, ShuffledRetriever
from sleuth.types import Episode, Score, SleuthError, Task

AS_IT_IS = "as it is"
KINDS = {"em": None, "em_one_hop": "one_hop", "em_two_hop": "two_hop"}
MARGIN = 1.0
"""Nats. A search that made what followed likelier by no more than this was idle."""
BUDGET = 4_096
"""Distinct tokens of one pass."""

Answered = Sequence[tuple[Episode, Score]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What `probe` found. `arms` has the figures of each arm, and `difference`, its exact match minus that of the arm
    as it is, question by question; `searches` and `passages` the gains of groups of them, `snippets` those of a
    refiner; `records` every gain."""

    arms: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    searches: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    passages: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    snippets: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        told = {"arms": self.arms, "searches": self.searches, "passages": self.passages, "snippets": self.snippets}
        tables = {name: table for name, table in told.items() if table}
        return {
            name: {row: {key: figure.as_json() for key, figure in of_row.items()} for row, of_row in table.items()}
            for name, table in tables.items()
        } | {"margin": MARGIN, "records": list(self.records)}


def probe(session: EvalSession, tasks: Sequence[Task]) -> Probed:
    """Ask the questions in every arm, then tell the episodes of the first again without what they found.

    Raises SleuthError for a dialect in messages of a chat template, before anything is asked.
    """
    setting = session.setting
    if isinstance(setting, RefineSetting):
        return _probe_citations(session, tasks)
    if not isinstance(setting, SearchSetting):
        raise SleuthError(f"the dialect {setting.dialect.name!r} looks nothing up: there is nothing to probe")
    require_text(setting.dialect)
    answered = {name: replace(session, setting=arm).ask(tasks, name) for name, arm in _arms(setting, tasks)}
    told = answered[AS_IT_IS]
    by_search = _gains(session, told, "search")
    by_passage = _gains(session, told, "passage")
    return Probed(
        arms={name: _arm(of_arm, told) for name, of_arm in answered.items()},
        searches=_grouped(by_search, _search_groups),
        passages=_with_wins(_grouped(by_passage, _passage_groups), by_passage),
        records=[_record(*found) for found in (*by_search, *by_passage)],
    )


def _probe_citations(session: EvalSession, tasks: Sequence[Task]) -> Probed:
    """Of all claims that cite, by question: the gain of the snippets that they cite and of the others, and how often a
    cited one gained more than any other."""
    answered = session.ask(tasks, AS_IT_IS)
    episodes = [episode for episode, _ in answered]
    renderer = Renderer(session.tokenizer)
    found = citation_gains(session.weights, renderer, session.setting, episodes, budget=BUDGET)
    pairs = [(episode.task.id, gain) for episode, gains in zip(episodes, found, strict=True) for gain in gains]
    claims: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for at, of_episode in enumerate(found):
        for gain in of_episode:
            claims.setdefault((at, gain.number), ([], []))[not gain.cited].append(gain.value)
    wins = {key: float(max(own) > max(others)) for key, (own, others) in claims.items() if own and others}
    groups = {"cited": [pair for pair in pairs if pair[1].cited], "not cited": [p for p in pairs if not p[1].cited]}
    snippets: dict[str, dict[str, Measured]] = {
        name: {"gain": bootstrap_mean([gain.value for _, gain in of_group], [task for task, _ in of_group])}
        for name, of_group in groups.items()
        if of_group
    }
    if wins:
        snippets["cited"]["ahead"] = share([*wins.values()], [episodes[at].task.id for at, _ in wins])
    return Probed(snippets=snippets, records=[{"id": task, **asdict(gain)} for task, gain in pairs])


def _arms(setting: SearchSetting, tasks: Sequence[Task]) -> Iterator[tuple[str, SearchSetting]]:
    yield AS_IT_IS, setting
    yield "closed book", replace(setting, closed_book=True, forced_search=False)
    yield "nothing found", replace(setting, retriever=EmptyRetriever())
    questions = [task.question for task in tasks]
    yield "others' passages", replace(setting, retriever=ShuffledRetriever(setting.retriever, questions))


def _arm(answered: Answered, as_it_is: Answered) -> dict[str, Measured]:
    figures = {
        key: share([score.parts.get("em") for _, score in of_kind], [episode.task.id for episode, _ in of_kind])
        for key, kind in KINDS.items()
        if (of_kind := [pair for pair in answered if kind in (None, pair[0].task.kind)])
    }
    searches = [_searches(episode) for episode, _ in answered]
    clusters = [episode.task.id for episode, _ in answered]
    figures["searches_mean"] = bootstrap_mean(searches, clusters)
    if answered is not as_it_is:
        ours, theirs = ([score.parts.get("em") for _, score in arm] for arm in (answered, as_it_is))
        figures["difference"] = paired_bootstrap(ours, theirs, clusters)
    return figures


def _searches(episode: Episode) -> float | None:
    """A story that the retriever cut short does not tell how often the policy would have searched."""
    return None if episode.trajectory.stop == "failed" else episode.trajectory.searches


# -- gains ------------------------------------------------------------------------------------------------------------

Found = tuple[Episode, Score, Gain]


def _gains(session: EvalSession, answered: Answered, removed: Removed) -> list[Found]:
    found = gains(
        session.weights,
        Renderer(session.tokenizer),
        session.setting.dialect,
        [episode.trajectory for episode, _ in answered],
        removed=removed,
        budget=BUDGET,
    )
    return [
        (episode, score, gain)
        for (episode, score), of_episode in zip(answered, found, strict=True)
        for gain in of_episode
    ]


def _search_groups(episode: Episode, score: Score, gain: Gain) -> Iterator[str]:
    yield "all"
    kind = episode.task.kind.replace("_", "-") or "question"
    if score.parts.get("em") == 1:
        yield f"right, {kind}, search {gain.number + 1}"
    else:
        yield "not right"


def _passage_groups(episode: Episode, score: Score, gain: Gain) -> Iterator[str]:
    gold = episode.task.gold_passages
    if gold and gain.passage is not None:
        yield "gold passages" if gain.passage.id in gold else "other passages"
    else:
        yield "passages"


def _with_wins(groups: dict[str, dict[str, Measured]], found: Sequence[Found]) -> dict[str, dict[str, Measured]]:
    """The groups, and of gold passages how often they were worth more than any other that the same search showed, where
    it showed both and the answer was right."""
    searches: dict[tuple[int, int], tuple[Task, list[float], list[float]]] = {}
    for episode, score, gain in found:
        if score.parts.get("em") == 1 and gain.passage is not None:
            task = episode.task
            _, gold, others = searches.setdefault((id(episode), gain.number), (task, [], []))
            (gold if gain.passage.id in task.gold_passages else others).append(gain.value)
    wins = [(max(gold) > max(others), task.id) for task, gold, others in searches.values() if gold and others]
    if wins:
        groups["gold passages"]["ahead"] = share([float(won) for won, _ in wins], [task for _, task in wins])
    return groups


def _grouped(
    found: Sequence[Found], groups: Callable[[Episode, Score, Gain], Iterator[str]]
) -> dict[str, dict[str, Measured]]:
    """By group: the mean gain, its parts in words that were found and in the last turn, and the share of idle ones;
    questions are clusters."""
    members: dict[str, list[Found]] = {}
    for case in found:
        for group in groups(*case):
            members.setdefault(group, []).append(case)
    return {group: _gain_figures(members[group]) for group in sorted(members)}


def _gain_figures(found: Sequence[Found]) -> dict[str, Measured]:
    clusters = [episode.task.id for episode, _, _ in found]
    return {
        "gain": bootstrap_mean([gain.value for _, _, gain in found], clusters),
        "found_gain": bootstrap_mean([gain.found for _, _, gain in found], clusters),
        "answer_gain": bootstrap_mean([gain.answer for _, _, gain in found], clusters),
        "idle": share([float(gain.found <= MARGIN) for _, _, gain in found], clusters),
    }


def _record(episode: Episode, score: Score, gain: Gain) -> dict[str, Any]:
    return {
        "id": episode.task.id,
        "sample": episode.sample,
        "em": score.parts.get("em"),
        "search": gain.number,
        "query": episode.trajectory.segments[gain.look.asked].text,
        "passage": None if gain.passage is None else gain.passage.id,
        "gain": gain.value,
        "found_gain": gain.found,
        "answer_gain": gain.answer,
        "tokens": gain.tokens,
    }
