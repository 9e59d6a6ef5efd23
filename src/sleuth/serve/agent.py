"""The served agent: a checkpoint with its engine and environment, and example questions that the page offers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sleuth.cite.dialect import refines
from sleuth.cite.rows import TOOL_OUTPUT, evidence_of
from sleuth.dialect import Dialect
from sleuth.episodes.agent import ChatSetting, RequestEnv
from sleuth.episodes.agent_messages import Asked
from sleuth.evaluation.certainty import Certainty
from sleuth.evaluation.eval_session import EvalSession
from sleuth.recipe.data import AskWith
from sleuth.render import Renderer
from sleuth.retrieval.index_card import read_card
from sleuth.serve.refused import Refused
from sleuth.types import Engine, Env, SleuthError, Task

MAX_CHARACTERS_PER_TOKEN = 32
"""Upper bound for the average token of a long text; questions beyond it are rejected without encoding them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The served model `name`. `make_task` turns a message, and the name of the request's field that holds it, into a
    task, and `env` opens its environment; `dialect` has the tags of thoughts, queries and answers. `facts` are shown to
    users. With a `certainty` it answers `NOTHING_FOUND` where too few answers like its own are right."""

    name: str
    engine: Engine
    renderer: Renderer
    make_task: Callable[[str, str], Task]
    env: Callable[[Task], Env]
    dialect: Dialect
    context: int
    facts: Mapping[str, Any]
    certainty: Certainty | None = None
    requests: Callable[[Asked], RequestEnv] | None = None
    """For a model that the user's own agent asks: opens the environment of a request, with its history and tools."""

    @property
    def max_characters(self) -> int:
        """Upper bound for a message that fits the context."""
        return self.context * MAX_CHARACTERS_PER_TOKEN


def agent_of(
    session: EvalSession,
    name: str,
    index: Path | None,
    examples: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    certainty: Certainty | None = None,
) -> Agent:
    """The agent of an evaluation session, so that it is served as it is evaluated. `index` is the index it searches,
    `examples` are questions that the page offers, and `facts` more that it shows."""
    setting = session.setting
    facts = {
        **(facts or {}),
        "dialect": setting.dialect.name,
        "context": session.context,
        "protocol": session.protocol().hash,
        "examples": list(examples),
    }
    if index is not None:
        facts["passages"] = read_card(index).count
    return Agent(
        name=name,
        engine=session.open_engine(),
        renderer=Renderer(session.tokenizer, session.setting.dialect.tags),
        make_task=partial(refining_task, ask_with=setting.ask_with) if refines(setting.dialect) else question_task,
        env=setting.env,
        dialect=setting.dialect,
        context=session.context,
        facts=facts,
        certainty=certainty,
        requests=(lambda asked: RequestEnv(asked, setting)) if type(setting) is ChatSetting else None,
    )


BRIEF = re.compile(r"(?:Question: )?(?P<question>.*?)(?:\s+Reasoning: (?P<reasoning>.*))?", re.DOTALL)
"""The text around a tool output, as a refiner's environment writes it, or a bare question."""


def question_task(message: str, field: str) -> Task:
    """A task whose question is the message, whatever field it is in."""
    return Task(id="", question=message, golden_answers=())


def refining_task(message: str, field: str, ask_with: AskWith) -> Task:
    """A refining task: the message has a tool output between `<tool_output>` tags, and around it the question and
    optionally the searcher's reasoning. With `ask_with` "prompt" the model reads the message itself. Raises `Refused`,
    which names the request's `field`, if there is nothing to cite."""
    outputs = TOOL_OUTPUT.findall(message)
    if not outputs:
        line = f"{field}: this model refines search results: expected <tool_output>...</tool_output> in the message"
        raise Refused(400, line, param=field)
    around = BRIEF.fullmatch(TOOL_OUTPUT.sub("", message).strip())
    assert around is not None  # it matches any text
    row = {"tool_output": "\n".join(output.strip() for output in outputs), "reasoning": around["reasoning"]}
    try:
        evidence = evidence_of(row, field)
    except SleuthError as error:
        raise Refused(400, str(error), param=field) from None
    prompt = message if ask_with == "prompt" else ""
    return Task(id="", question=around["question"].strip(), golden_answers=(), evidence=evidence, prompt=prompt)


# -- example questions -------------------------------------------------------------------------------------------------

COUNT = 3
TO_REFINE = """Where was Ada Voss born?
<tool_output>
<snippet id=a1>Ada Voss was born in Tarn in 1890.</snippet>
<snippet id=b2>Tarn is a town by a lake.</snippet>
</tool_output>"""


def example_questions(model: str, dialect: Dialect, tasks: Sequence[Task]) -> list[str]:
    """At most three messages, of different kinds if there are several: of the tasks or, without any, of an evaluation
    in the run that wrote the checkpoint. A refiner gets only tasks with a tool output or else one of our own, as
    evaluations do not store what it read."""
    if refines(dialect):
        given = [(task.kind, message_of(task)) for task in tasks if task.evidence is not None]
        return _of_each_kind(given) or [TO_REFINE]
    if tasks:
        return _of_each_kind((task.kind, task.question) for task in tasks)
    return _of_each_kind((record["kind"], record["question"]) for record in _evaluated(Path(model)))


def message_of(task: Task) -> str:
    """The message that asks the question of a task; a refiner's has the tool output."""
    if task.evidence is None:
        return task.question
    reasoning = f"\nReasoning: {task.evidence.reasoning}" if task.evidence.reasoning else ""
    return f"Question: {task.question}{reasoning}\n<tool_output>\n{task.evidence.output.strip()}\n</tool_output>"


def _of_each_kind(asked: Iterable[tuple[str, str]]) -> list[str]:
    """The first question of each kind, then further ones."""
    by_kind: dict[str, list[str]] = {}
    for kind, question in asked:
        by_kind.setdefault(kind, []).append(question)
    firsts = [question for of_kind in by_kind.values() for question in of_kind[:1]]
    others = [question for of_kind in by_kind.values() for question in of_kind[1:]]
    return [*firsts, *others][:COUNT]


def _evaluated(checkpoint: Path) -> Iterator[dict[str, Any]]:
    """The records of the first evaluation in the run of a checkpoint, RUN/checkpoints/step-000100, that asked
    questions. Examples are not worth an error, so damaged files are skipped."""
    folder = checkpoint.resolve().parent
    if folder.name != "checkpoints":
        return
    for file in sorted((folder.parent / "eval").glob("*.json")):
        try:
            records = json.loads(file.read_bytes())["records"]
            asked = [record for record in records if "golden_answers" in record]
            found = [one for one in asked if isinstance(one.get("kind"), str) and isinstance(one.get("question"), str)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if found:
            yield from found
            return
