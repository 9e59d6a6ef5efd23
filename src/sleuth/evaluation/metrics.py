"""The figures of an evaluation file from finished episodes, and the recall of a retriever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from sleuth.answers.answer import SCORE
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.types import RETRIEVER_FAILED, Refined, Retriever, Score, Task, Trajectory

Record = tuple[Task, Trajectory, Score]
"""One finished episode."""

SCORER_PREFIX = "score_"
"""The prefix of score parts by scorers other than the strict one, and by functions of the user."""

CITING = ("cites", "cited_holds_answer", "cited_gold")
"""The score parts of answers that may cite a passage, as `AnswerReward` gives them."""


REFINED: dict[str, Refined] = {"refiner_abstained": "abstained", "refiner_too_long": "too_long"}
"""The figures of what a refiner made of the results."""


def refined_share(figure: str, outcomes: Sequence[str]) -> float | None:
    """The share of an episode's refined results that a figure of `REFINED` counts; None without any."""
    return outcomes.count(REFINED[figure]) / len(outcomes) if outcomes else None


def episode_figures(records: Sequence[Record], *, cites: bool = False, is_scored: bool = False) -> dict[str, Measured]:
    """The figures of an evaluation, whose answers may cite passages if `cites`; siblings of one task count as one draw.
    If it `is_scored`, the stage's own score is the verdict.

    - `em`, `em_one_hop`, `em_two_hop`: exact match, over all tasks and over those of a kind;
    - `searched`: the share of episodes with a search; `searches_mean`: mean searches, `searches_two_hop`: those on
      two-hop tasks;
    - `response_tokens_mean`: mean tokens that the policy wrote; `results_tokens_mean`: mean tokens by other authors
      after its first turn;
    - `query_recall`: the share of episodes whose first search found a gold passage, over tasks that have one; one
      without a search counts as 0, and is left out of `query_recall_searched`;
    - `missing`: the share of episodes without a verdict;
    - `score`: the mean of what the stage pays; `score_NAME`: that of a scorer other than the strict one, or of a
      function of the user, and `score_NAME/PART` of a part that it returned;
    - `well_formed`: the share of episodes in which every turn is one closed thought and one action, the last one the
      answer, of agents that write tags;
    - `cites`, with the argument of that name: the share of answers whose quotation is in a passage that was shown;
      `cited_holds_answer`: the share of right answers that such a quotation contains, and `cited_gold`, over tasks that
      name passages, of those whose quoted passage is one of them; 0 for one without a citation;
    - `refiner_abstained`, `refiner_too_long`: over the episodes whose results a refiner read, the mean share of those
      of which it made no claims, or which left it no room for an answer.

    A figure is absent if no task could have it, and unmeasured (value None, n 0) if every value is missing.
    """
    one_hop = [record for record in records if record[0].kind == "one_hop"]
    two_hop = [record for record in records if record[0].kind == "two_hop"]
    with_gold = [record for record in records if record[0].gold_passages]
    figures = {
        "em": (share, records, _em),
        "em_one_hop": (share, one_hop, _em),
        "em_two_hop": (share, two_hop, _em),
        "searched": (share, records, _searched),
        "searches_mean": (bootstrap_mean, records, _searches),
        "searches_two_hop": (bootstrap_mean, two_hop, _searches),
        "query_recall": (share, with_gold, _first_search_found_gold),
        "query_recall_searched": (share, with_gold, _first_search_found_gold_if_any),
        "response_tokens_mean": (bootstrap_mean, records, response_tokens),
        "results_tokens_mean": (bootstrap_mean, records, _results_tokens),
        "missing": (share, records, _unscored if is_scored else _missing),
    }
    refined = [record for record in records if any(action.refined for action in record[1].actions)]
    for name in REFINED if refined else ():
        figures[name] = (bootstrap_mean, refined, partial(_refined, name))
    for name in dict.fromkeys(name for _, _, score in records for name in compatible_scores(score)):
        figures[name] = (bootstrap_mean, records, partial(_part, name))
    well_formed = any("well_formed" in score.parts for _, _, score in records)
    for name in (*(["well_formed"] if well_formed else []), *(CITING if cites else [])):
        figures[name] = (share, records, partial(_part, name))
    return {
        name: measured([value(*record) for record in population], [task.id for task, _, _ in population])
        for name, (measured, population, value) in figures.items()
        if population
    }


def compatible_scores(score: Score) -> dict[str, float]:
    """The scores of an episode by the stage, by its functions and by scorers other than the strict one, with their
    parts: `{"score_search_r1": 1.0}`."""
    return {name: value for name, value in score.parts.items() if is_score(name)}


def is_score(figure: str) -> bool:
    """Whether a figure is what a stage pays, a scorer other than the strict one, a user's function or a part of it."""
    return figure == SCORE or figure.startswith(SCORER_PREFIX)


def score_label(figure: str) -> str:
    """A figure that `is_score` in words: "Score", "Score by brevity", and "turns of brevity" for a part."""
    name, slash, part = figure.removeprefix(SCORER_PREFIX).partition("/")
    return "Score" if figure == SCORE else f"{part} of {name}" if slash else f"Score by {name}"


def outcome_counts(records: Sequence[Record], *, is_scored: bool = False) -> dict[str, int]:
    """The number of episodes by outcome (the score's note, else the stop reason), most frequent first. All failures of
    a retriever are one outcome. If the stage's own score is the verdict, only a missing one has its note as outcome."""
    noted = ((score.note if score.value is None or not is_scored else "", one.stop) for _, one, score in records)
    return _most_frequent_first(Counter(_outcome(note) or stop for note, stop in noted))


def missing_reasons(records: Sequence[Record]) -> dict[str, int]:
    """The number of missing scores by the whole note, most frequent first."""
    return _most_frequent_first(Counter(score.note for _, _, score in records if score.value is None))


def _outcome(note: str) -> str:
    return RETRIEVER_FAILED if note.startswith(RETRIEVER_FAILED) else note


def _most_frequent_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


async def recall_at_k(retriever: Retriever, tasks: Sequence[Task], k: int) -> Measured:
    """The share of tasks for which a gold passage is among the first k, with the question as the query.

    Tasks without gold passages are left out. Raises RetrievalFailed if any search fails.
    """
    with_gold = [task for task in tasks if task.gold_passages]
    found = await retriever.search([task.question for task in with_gold], k)
    hits = [any(p.id in task.gold_passages for p in passages) for task, passages in zip(with_gold, found, strict=True)]
    return share(hits)


# -- the value of one episode; None is missing ------------------------------------------------------------------------


def _em(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    """Strict exact match, which exists for every finished episode, even if another scorer could not read it."""
    return score.parts.get("em")


def _part(name: str, task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return score.parts.get(name)


def _refined(name: str, task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return refined_share(name, [outcome for action in trajectory.actions for outcome in action.refined])


def _missing(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return float("em" not in score.parts)


def _unscored(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return float(score.value is None)


def _searches(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    """Missing if the retriever failed: the policy might have searched more often."""
    return None if trajectory.stop == "failed" else trajectory.searches


def _searched(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return None if trajectory.stop == "failed" else float(trajectory.searches > 0)


def response_tokens(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    """The number of tokens that the policy wrote; None if the retriever failed."""
    if trajectory.stop == "failed":
        return None
    return sum(len(segment.tokens) for segment in trajectory.segments if segment.author == "policy")


def _results_tokens(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    """The number of tokens after the policy's first turn that the policy did not write; None if the retriever
    failed."""
    if trajectory.stop == "failed":
        return None
    authors = [segment.author for segment in trajectory.segments]
    first = authors.index("policy") if "policy" in authors else len(authors)
    return sum(len(segment.tokens) for segment in trajectory.segments[first:] if segment.author != "policy")


def _first_search_found_gold(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    if trajectory.stop == "failed":
        return None
    searches = (action for action in trajectory.actions if action.kind == "search")
    retrieved = [passage.id for action in list(searches)[:1] for passage in action.passages]
    return float(any(passage_id in task.gold_passages for passage_id in retrieved))


def _first_search_found_gold_if_any(task: Task, trajectory: Trajectory, score: Score) -> float | None:
    return _first_search_found_gold(task, trajectory, score) if trajectory.searches else None
