"""The arms of a certificate: both models and the control arms, each stored when it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from sleuth.answers.match import exact_match
from sleuth.cite.claims import abstains
from sleuth.data.hub import local_file
from sleuth.data.questions import load_questions, questions_hash
from sleuth.data.rows import read_rows, texts_of
from sleuth.dialect import Dialect
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.certainty import LEAST, Certainty, answers_in, signals_of
from sleuth.evaluation.certificate import UNANSWERABLE, is_answerable
from sleuth.evaluation.eval_session import EvalSession, open_eval_session
from sleuth.evaluation.evaluate import evaluation
from sleuth.evaluation.figures import Record
from sleuth.evaluation.judge_exam import accurate_judge
from sleuth.evaluation.paired import BASE, TRAINED
from sleuth.host.checksums import file_sha256, weights_sha256
from sleuth.host.threads import PROCESS
from sleuth.judges.cache import NamedJudge
from sleuth.read.exam import window_answer
from sleuth.recipe.judges import JudgeFields
from sleuth.retrieval.open_index import open_index
from sleuth.runs.chain import recorded
from sleuth.runs.eval_file import read_eval, set_aside_damaged, write_eval
from sleuth.search.probe import control_arms
from sleuth.search.setting import SearchSetting
from sleuth.terminal.tables import print_notes
from sleuth.types import Case, Episode, SleuthError, Task
from sleuth.world.wording import UNANSWERED

EQUAL = "The answer says the same as one of these right answers, and nothing that contradicts it: "
SURE = 0.5
"""A verdict above it finds two answers equal."""
HOW_ASKED = ("protocol.json", "certainty.json")
"""Files of a model's folder, beside its weights, that decide what it answers."""
CONTROLS = ("closed book", "nothing found", "others' passages")
WINDOW = "words beside the question's"
"""The control arm that learns nothing."""


def equality_judge(recipe: JudgeFields, file: Path) -> NamedJudge:
    """The judge of a file, after its exam. Raises SleuthError for one that cannot read a criterion."""
    opened = accurate_judge(recipe, file, ["criteria"])
    if opened.pairs is None:
        raise SleuthError(f"--judge {file}: judges statements alone, and cannot compare answers; name a model")
    return opened.judge


@dataclass(kw_only=True)
class CertifiedArms:
    """Answers of `model` and `base`, here or on their servers, `engine` and `base_engine`, to a file of questions, each
    arm in a file of `folder`."""

    model: str
    base: str
    questions: Path
    index: Path
    folder: Path
    judge: NamedJudge | None
    engine: str | None = None
    served_as: str | None = None
    base_engine: str | None = None
    _open: tuple[str, EvalSession] | None = None

    @cached_property
    def tasks(self) -> list[Task]:
        """The questions; the gold passages of an unanswerable one are those that are taken out of the index."""
        tasks, rows = load_questions(self.questions), read_rows(local_file(self.questions))
        searched: dict[str, Any] = {"kind": UNANSWERABLE, "evidence": None, "golden_answers": (UNANSWERED,)}
        return [
            replace(task, gold_passages=texts_of(row.get("taken_out"), "taken_out", where), **searched)
            if row.get("answerable") is False
            else task
            for task, (where, row) in zip(tasks, rows, strict=True)
        ]

    @cached_property
    def answerable(self) -> list[Task]:
        """The questions by which a gain is measured."""
        return [task for task in self.tasks if task.kind != UNANSWERABLE]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is certified, with digests. Raises SleuthError with a line for each reason why it cannot be."""
        index, tasks, problems = open_index(self.index), self.tasks, list[str]()
        ours, theirs = weights_sha256(self.model), weights_sha256(self.base)
        if self.model == self.base or (ours is not None and ours == theirs):
            problems.append(f"--base {self.base}: has the weights of {self.model}; name what that was trained from")
        absent = [one.id for one in tasks if any(index.passage(name) is None for name in one.gold_passages)]
        if absent:
            problems.append(
                f"--questions {self.questions}: {len(absent):,} of {len(tasks):,} are about passages that {self.index} "
                f"has not, such as {absent[0]!r}; name the index of their documents"
            )
        if not self.answerable:
            problems.append(f"--questions {self.questions}: has no answerable question, by which a gain is measured")
        if problems:
            raise SleuthError(*problems)
        return {
            **{"model": self.model, "model_sha256": ours, "base": self.base, "base_sha256": theirs},
            **{"questions": str(self.questions), "questions_sha256": questions_hash(tasks)},
            **{"index": str(self.index), "corpus_sha256": index.card.corpus_sha256},
            "judge": None if self.judge is None else self.judge.identity,
        }

    def calibrate(self, questions: Path | None) -> None:
        """Writes the model's certainty, by its answers to questions that it was not trained on and that are not
        certified. Without them, or where too few are right, it is that of the base in the same dialect, and never
        replaces one that is there. Raises SleuthError for questions that are certified."""
        model, base = Path(self.model), Path(self.base)
        cards = [ProtocolCard.read(one) if one.is_dir() else None for one in (model, base)]
        known = Certainty.read(base) if all(cards) and len({one.dialect.name for one in cards if one}) == 1 else None
        fitted = None if questions is None else self._fitted(questions, known)
        if fitted or (known and Certainty.read(model) is None):
            with recorded(model):  # a checkpoint of a run, whose chain names its files
                (fitted or cast(Certainty, known)).write(model)

    def _fitted(self, questions: Path, base: Certainty | None) -> Certainty | None:
        """By the answers to a file of questions, with the weights of the base's, if it has one."""
        tasks = load_questions(questions) if questions.stat().st_size else []
        if common := {task.question for task in tasks} & {task.question for task in self.tasks}:
            raise SleuthError(
                f"--calibration {questions}: {len(common):,} of its questions are in {self.questions} too; name others"
            )
        session, asked = self._session(self.model), [task for task in tasks if task.golden_answers]
        answered = session.ask(asked, "certify: calibration") if asked else []
        known = [one for one in answers_in(answered, session.setting.dialect) if one[0] is not None]
        if (right := sum(is_right for _, is_right in known)) >= LEAST:
            return Certainty.fit(known) if base is None else base.measured(known)
        print_notes([f"{questions}: {right} of {len(known):,} answers with log-probabilities are right, not {LEAST}"])
        return None

    def both(self) -> dict[str, Sequence[Record]]:
        """The base and the trained model."""
        self.folder.mkdir(parents=True, exist_ok=True)
        set_aside_damaged(self.folder, lambda line: print_notes([line]))
        return {BASE: self._answers(BASE, self.base), TRAINED: self._answers(TRAINED, self.model)}

    def controls(self) -> dict[str, Sequence[Record]]:
        """The trained model without a search, without results and with those of other questions; and the words beside
        the question's in the first passage that it finds, which learns nothing (`sleuth.read.exam.window_answer`)."""
        results = open_index(self.index).find([task.question for task in self.answerable], 1)
        texts = [first[0].text if first else "" for first in results]
        window = [
            {"id": task.id, "em": float(exact_match(window_answer(task.question, text), task.golden_answers))}
            for task, text in zip(self.answerable, texts, strict=True)
        ]
        return {name: self._answers(name, self.model, control=True) for name in CONTROLS} | {WINDOW: window}

    def _answers(self, arm: str, model: str, *, control: bool = False) -> Sequence[Record]:
        """The records of an arm: those of its file if that is of the same model, questions and index, or else asked."""
        file = self.folder / f"{arm.replace(' ', '_')}.json"
        asked = {name: self.facts[name] for name in ("questions_sha256", "corpus_sha256", "judge")}
        how = [Path(self.model) / HOW_ASKED[0], *(Path(model) / name for name in HOW_ASKED)]
        asked |= {one.name: file_sha256(one) for one in how if one.is_file()}
        if (engine := self._server(model)) is not None:
            asked["engine"] = engine
        kept = read_eval(file, models={"model": model})
        if kept is not None and kept.get("asked") == asked:
            return kept["records"]
        session, tasks = self._session(model), self.answerable if control else self.tasks
        if control:
            session = replace(session, setting=dict(control_arms(cast(SearchSetting, session.setting), tasks))[arm])
        answered = session.ask(tasks, f"certify: {arm}")
        contents, certainty = evaluation(answered, session, name=arm, model=model), Certainty.read(Path(model))
        records = [
            _certified(record, episode, session.setting.dialect, certainty)
            for record, (episode, _) in zip(contents["records"], answered, strict=True)
        ]
        if self.judge is not None and not control:
            asyncio.run(_add_verdicts(records, self.judge))
        write_eval(file, contents | {"asked": asked, "records": records})
        return records

    def _server(self, model: str) -> str | None:
        return self.engine if model == self.model else self.base_engine

    def _session(self, model: str) -> EvalSession:
        """The model, asked as it was trained, a base without a protocol as the model; an unanswerable question does not
        find its passages. The last one that was opened is kept."""
        if self._open is None or self._open[0] != model:
            self._open = None  # its memory is freed first
            protocol = ProtocolCard.read(Path(self.model)) if Path(self.model).is_dir() else None
            named = self.served_as if model == self.model else None
            session, notes = open_eval_session(
                model, self.tasks, index=self.index, engine=self._server(model), served_as=named, protocol=protocol
            )
            if not isinstance(session.setting, SearchSetting):
                raise SleuthError(f"{model}: does not search, and certify is for models that do")
            print_notes(note for note in notes if model == self.model or "corpus" not in note)  # the base's is another
            PROCESS.announce()
            hidden = {task.id: task.gold_passages for task in self.tasks if task.kind == UNANSWERABLE}
            self._open = model, replace(session, setting=replace(session.setting, hidden=hidden))
        return self._open[1]


def _certified(record: Record, episode: Episode, dialect: Dialect, certainty: Certainty | None) -> dict[str, Any]:
    """The record with what `sleuth.evaluation.certificate` wants to know; without a verdict nothing is known. An answer
    of which the model is too unsure is withheld, as in `sleuth ask`."""
    given = record["answer"] if record["note"] in ("correct", "wrong") else None
    shown = given is not None and not abstains(given)
    if shown and certainty is not None:
        signals = signals_of(episode.task.question, given or "", episode.whole, dialect)
        shown = signals is None or not certainty.withholds(signals)
    quoted = (record.get("cited_holds_answer") or 0.0) * record.get("cited_gold", 1.0)
    known = {"shown": float(shown), "silent": float(not shown), "supported": quoted if dialect.cites else None}
    return {**record, "given": given, **(known if record["em"] is not None else dict.fromkeys(known))}


async def _add_verdicts(records: Sequence[dict[str, Any]], judge: NamedJudge) -> None:
    """Adds what the judge says of answers that are not exactly right; without an answer that is 0."""
    asked = [one for one in records if is_answerable(one) and one["em"] == 0 and one["given"] is not None]
    golden = ["; ".join(map(repr, one["golden_answers"])) for one in asked]
    cases = [
        Case(question=one["question"], claim=one["given"], evidence="", criterion=EQUAL + right)
        for one, right in zip(asked, golden, strict=True)
    ]
    for one in records:
        one["judged"] = one["em"]
    for one, verdict in zip(asked, await judge.judge(cases) if cases else [], strict=True):
        one["judged"] = None if verdict.score is None else float(verdict.score > SURE)
