"""Evaluates a model on questions: figures with intervals, and a record of every question.

All figures are computed from the records as they are stored, so reading a file again gives the same ones. Samples of
one question count as one draw.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sleuth.answers.answer import AUDIT_SCORE, SCORE
from sleuth.answers.factory import computes_score, leads_with_score, reward_spec_of
from sleuth.answers.match import sub_match, token_f1
from sleuth.answers.suites import QuestionSet, Suite
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.figures import (
    Figure,
    Record,
    figure,
    figures,
    is_paid,
    is_score,
    measured_figures,
    record_entries,
    scores_in,
)
from sleuth.evaluation.intervals import Measured, mean_of_means
from sleuth.types import RETRIEVER_FAILED, Episode, Score


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
    protocol = session.protocol()
    dialect = session.setting.dialect
    paid = not session.measured and computes_score(session.rewards, dialect)
    is_scored = paid and not any(reward.compares_answers for reward in session.rewards)
    records = [question_record(episode, score, is_scored=is_scored) for episode, score in answered]
    reasons = _most_frequent_first(reason for _, score in answered if (reason := _why_missing(score)) is not None)
    measured = measured_figures(records, dialect)
    scores = sorted(filter(is_score, measured), key=lambda key: key != SCORE)
    leads = scores if leads_with_score(session.rewards, dialect) else []
    if session.measured:
        kinds = (f"{SCORE}/{reward.kind}" for reward in session.measured[0].rewards)
        leads = [key for key in (SCORE, AUDIT_SCORE, "audit_gap", *kinds) if key in measured]
    tables = [table for scores in session.measured for table in scores.rewards] or (session.rewards if paid else ())
    return {
        "name": name,
        "model": model,
        **({"headline": leads} if leads else {}),
        **({"reward": reward_spec_of(tables).hash} if tables else {}),
        **{key: measured[key].as_json() for key in _led(measured, leads)},
        "outcomes": outcome_counts(records),
        **({"missing_because": reasons} if reasons else {}),
        "temperature": session.temperature,
        **({"engine": session.server.as_json()} if session.server is not None else {}),
        "protocol": protocol.model_dump(mode="json") | {"hash": protocol.hash},
        "records": records,
    }


def _why_missing(score: Score) -> str | None:
    """Why an episode has no score, or not all that should be measured of it; None if nothing is missing."""
    lacking = (f"{name}: {note}" for name, note in score.notes.items() if is_paid(name))
    return score.note if score.value is None else next(lacking, None)


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
        **record_entries(episode.task, score),
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


def outcome_counts(records: Sequence[Record]) -> dict[str, int]:
    """The number of episodes by outcome (the score's note, else the stop reason), most frequent first. All failures of
    a retriever are one outcome. If the stage's own score is the verdict, only a missing one has its note as outcome."""
    notes = (record["note"] if record.get("verdict") != SCORE or record[SCORE] is None else "" for record in records)
    outcomes = (RETRIEVER_FAILED if note.startswith(RETRIEVER_FAILED) else note for note in notes)
    return _most_frequent_first(outcome or record["stop"] for outcome, record in zip(outcomes, records, strict=True))


def _most_frequent_first(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


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
    """The figures of a set: those that suites have the mean of."""
    return {row.name: row.measure(records) for row in _set_rows(records)}


def mean_over_sets(records: Sequence[Sequence[Record]]) -> dict[str, Measured]:
    """The unweighted mean of each figure over the sets, with a stratified bootstrap over questions."""
    every = [record for set_records in records for record in set_records]
    strata = {row: [row.stratum(set_records) for set_records in records] for row in _set_rows(every)}
    return {row.name: mean_of_means(of_sets, outcomes=row.is_outcome) for row, of_sets in strata.items()}


def _set_rows(records: Sequence[Record]) -> list[Figure]:
    """The figures over sets that these records have."""
    return [*(row for row in figures() if row.heading), *map(figure, scores_in(records))]
