"""Evaluates a model on questions: figures with intervals, and a record of every question.

All figures are computed from the records as they are stored, so reading a file again gives the same ones. Samples of
one question count as one draw.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sleuth.answers.answer import SCORE
from sleuth.answers.factory import computes_score, leads_with_score, reward_spec_of
from sleuth.answers.match import sub_match, token_f1
from sleuth.answers.suites import QuestionSet, Suite
from sleuth.cite.dialect import refines
from sleuth.cite.figures import FIGURES as CITATION_FIGURES
from sleuth.cite.figures import citation_figures, citation_value
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.intervals import Measured, Stratum, bootstrap_mean, mean_of_means, share
from sleuth.evaluation.metrics import (
    CITING,
    REFINED,
    compatible_scores,
    episode_figures,
    is_score,
    missing_reasons,
    outcome_counts,
)
from sleuth.evaluation.paired import question_value
from sleuth.types import Episode, Score, Task


def ask_suite(
    session: EvalSession,
    suite: Suite,
    *,
    name: str,
    model: str,
    write: Callable[[str, dict[str, Any]], None] = lambda name, contents: None,
    stored: Callable[[str], dict[str, Any] | None] = lambda name: None,
) -> dict[str, Any]:
    """The contents of the suite's own file, after asking every set: means over the sets, and no records.

    Calls `write` with the name of each set's evaluation, `NAME@SET`, and its contents as soon as it is measured; those
    that are `stored` are reused if they are of the same questions.
    """
    measured: dict[str, dict[str, Any]] = {}
    for questions in suite.sets:
        of_set = f"{name}@{questions.name}"
        before = stored(of_set)
        if before is not None and before["set"]["questions_sha256"] == questions.questions_sha256:
            measured[questions.name] = before
            continue
        set_session = replace(session, draw=(zlib.crc32(questions.name.encode()),))
        answered = set_session.ask(questions.tasks, f"evaluate {of_set}")
        contents = evaluation(answered, session, name=of_set, model=model)
        measured[questions.name] = contents = set_evaluation(contents, questions)
        write(of_set, contents)
    return suite_evaluation(measured, suite, name=name)


def set_evaluation(contents: dict[str, Any], questions: QuestionSet) -> dict[str, Any]:
    """An evaluation of one set of a suite, with the set's own figures and its choice of questions."""
    records = [record | record_values(record) for record in contents["records"]]
    figures = {key: figure.as_json() for key, figure in set_figures(records).items()}
    return {
        "name": contents["name"],
        "model": contents["model"],
        "set": {
            "name": questions.name,
            "split": questions.split,
            "questions": len(questions.tasks),
            "of": questions.total,
            "ids_sha256": questions.ids_sha256,
            "questions_sha256": questions.questions_sha256,
        },
        **contents,
        **figures,
        "records": records,
    }


def suite_evaluation(measured: Mapping[str, dict[str, Any]], suite: Suite, *, name: str) -> dict[str, Any]:
    """The means over the sets, the figures of each set without its records, and the protocol of all."""
    first = next(iter(measured.values()))
    means = mean_over_sets([contents["records"] for contents in measured.values()])
    outcomes = sum((Counter(contents["outcomes"]) for contents in measured.values()), Counter())
    reasons = sum((Counter(contents.get("missing_because", {})) for contents in measured.values()), Counter())
    return {
        "name": name,
        "model": first["model"],
        "suite": {"place": suite.place, "per_set": suite.per_set, "ids_sha256": suite.ids_sha256},
        **{key: first[key] for key in ("headline", "reward") if key in first},
        **{key: means[key].as_json() for key in _led(means, first.get("headline", ()))},
        "sets": {
            set_name: contents["set"] | {key: contents[key] for key in (*means, "missing") if key in contents}
            for set_name, contents in measured.items()
        },
        "outcomes": dict(outcomes.most_common()),
        **({"missing_because": dict(reasons.most_common())} if reasons else {}),
        "temperature": first["temperature"],
        **({"engine": first["engine"]} if "engine" in first else {}),
        "protocol": first["protocol"],
    }


def evaluation(
    answered: Sequence[tuple[Episode, Score]], session: EvalSession, *, name: str, model: str
) -> dict[str, Any]:
    """The contents of an evaluation file: figures with intervals, counts of outcomes, the protocol and all records."""
    records = [(episode.task, episode.whole, score) for episode, score in answered]
    reasons = missing_reasons(records)
    protocol = session.protocol()
    dialect = session.setting.dialect
    paid = computes_score(session.rewards, dialect)
    is_scored = paid and not any(reward.compares_answers for reward in session.rewards)
    figures = (
        citation_figures(records)
        if refines(dialect)
        else episode_figures(records, cites=dialect.cites, is_scored=is_scored)
    )
    scores = sorted(filter(is_score, figures), key=lambda key: key != SCORE)
    leads = scores if leads_with_score(session.rewards, dialect) else []
    return {
        "name": name,
        "model": model,
        **({"headline": leads} if leads else {}),
        **({"reward": reward_spec_of(session.rewards).hash} if paid else {}),
        **{key: figures[key].as_json() for key in _led(figures, leads)},
        "outcomes": outcome_counts(records, is_scored=is_scored),
        **({"missing_because": reasons} if reasons else {}),
        "temperature": session.temperature,
        **({"engine": session.server.as_json()} if session.server is not None else {}),
        "protocol": protocol.model_dump(mode="json") | {"hash": protocol.hash},
        "records": [question_record(episode, score, is_scored=is_scored) for episode, score in answered],
    }


def _led(figures: Mapping[str, Measured], leads: Sequence[str]) -> list[str]:
    """The names of the figures, with those that lead before the others."""
    return list(dict.fromkeys([*(key for key in leads if key in figures), *figures]))


def question_record(episode: Episode, score: Score, *, is_scored: bool = False) -> dict[str, Any]:
    """The episode of one question as plain values; linked trajectories are laid end to end. If it `is_scored`, the
    stage's own score is the verdict, and None if it is missing."""
    trajectory = episode.whole
    answers = [action.text for action in trajectory.actions if action.kind == "answer"]
    return {
        "id": episode.task.id,
        "question": episode.task.question,
        "golden_answers": list(episode.task.golden_answers),
        "gold_passages": list(episode.task.gold_passages),
        "kind": episode.task.kind,
        **({"verdict": SCORE, SCORE: score.value} if is_scored else {}),
        "em": score.parts.get("em"),
        **compatible_scores(score),
        **{name: score.parts[name] for name in ("well_formed", *CITING) if name in score.parts},
        **_citations(episode.task, score),
        "note": score.note,
        **({"notes": dict(score.notes)} if score.notes else {}),
        "answer": answers[-1] if answers else None,
        "searches": trajectory.searches,
        "stop": trajectory.stop,
        "segments": [
            {"author": segment.author, "text": segment.text, "tokens": len(segment.tokens), "cut": segment.cut}
            for segment in trajectory.segments
        ],
        "actions": [
            {
                "kind": action.kind,
                "text": action.text,
                "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in action.passages],
                **({"failure": action.failure} if action.failure else {}),
                **({} if action.result is None else {"result": action.result}),
                **({"same_turn": True} if action.same_turn else {}),
                **({"refined": list(action.refined)} if action.refined else {}),
            }
            for action in trajectory.actions
        ],
    }


def missing_line(contents: Mapping[str, Any]) -> str | None:
    """`2 of 40 episodes have no score: retriever failed: ...`, from the contents of a file; None if none is missing."""
    reasons: Mapping[str, int] = contents.get("missing_because", {})
    if not reasons:
        return None
    missing, first = sum(reasons.values()), next(iter(reasons))
    others = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
    return f"{missing} of {sum(contents['outcomes'].values())} episodes have no score: {first}{others}"


def all_missing(contents: Mapping[str, Any]) -> bool:
    """Whether no episode has a score."""
    missing = sum(contents.get("missing_because", {}).values())
    return missing > 0 and missing == sum(contents["outcomes"].values())


def _citations(task: Task, score: Score) -> dict[str, float | None]:
    """The figures of an answer's citations, if they were judged."""
    if "claims" not in score.parts:
        return {}
    return {name: citation_value(name, task, score) for name in CITATION_FIGURES}


Record = Mapping[str, Any]
"""One answered question, as `question_record` returns it."""


def record_values(record: Record) -> dict[str, float | None]:
    """The values that records of a set have beside the others: `sub_match` and `f1` of the answer.

    As for exact match, they are 0 if the strict scorer accepted no answer, and None if there is no score.
    """
    if record["em"] is None:
        return {"sub_match": None, "f1": None}
    answer = record["answer"] if record["note"] in ("correct", "wrong") else None
    if answer is None:
        return {"sub_match": 0.0, "f1": 0.0}
    golden = record["golden_answers"]
    return {"sub_match": float(sub_match(answer, golden)), "f1": token_f1(answer, golden)}


def set_figures(records: Sequence[Record]) -> dict[str, Measured]:
    """`em` and `sub_match` with Wilson's interval; `f1`, searches, the policy's tokens per episode and the scores of
    other scorers with that of a bootstrap over questions."""
    strata = {name: _stratum(records, name) for name in _measures(records)}
    return {name: measure(strata[name].values, strata[name].clusters) for name, measure in _measures(records).items()}


def mean_over_sets(records: Sequence[Sequence[Record]]) -> dict[str, Measured]:
    """The unweighted mean of each figure over the sets, with a stratified bootstrap over questions."""
    every = [record for set_records in records for record in set_records]
    return {name: mean_of_means([_stratum(set_records, name) for set_records in records]) for name in _measures(every)}


def _measures(records: Sequence[Record]) -> dict[str, Callable[..., Measured]]:
    """The estimator of each figure that these records have."""
    scores = dict.fromkeys(key for record in records for key in record if is_score(key))
    refined = [name for name in REFINED if any(question_value(name, record) is not None for record in records)]
    return FIGURES | dict.fromkeys([*scores, *refined], bootstrap_mean)


def _stratum(records: Sequence[Record], name: str) -> Stratum:
    """The values of a figure, clustered by question."""
    return Stratum(
        values=[question_value(name, record) for record in records], clusters=[record["id"] for record in records]
    )


FIGURES: dict[str, Callable[..., Measured]] = {
    "em": share,
    "sub_match": share,
    "f1": bootstrap_mean,
    "searches_mean": bootstrap_mean,
    "response_tokens_mean": bootstrap_mean,
}
"""The estimator of each figure of a set, applied to the `question_value` of its records."""
