"""A language model teacher that writes the rubrics of a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sleuth.judges.http import JsonClient
from sleuth.judges.judge_prompts import InvalidAnswerError, json_object, prompt_text, tagged_block
from sleuth.types import Rubric, Task

MAX_CRITERIA = 5
"""Per task, of both kinds together."""
MAX_TITLE_WORDS = 12
KINDS = {"positive_rubrics": True, "negative_rubrics": False}
"""The keys of an answer, and whether their criteria are wanted."""
PROMPT = prompt_text("rubrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricQuestion:
    """The question to a teacher about a task."""

    message: str

    @property
    def name(self) -> str:
        """The form's name."""
        return "rubrics"

    @property
    def prompt(self) -> str:
        """The system message."""
        return PROMPT

    @property
    def entries(self) -> int:
        """Always 1."""
        return 1

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; it cannot express the limit on both kinds together."""
        keys = {"title": {"type": "string"}, "description": {"type": "string"}}
        criterion = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
        lists = {key: {"type": "array", "items": criterion, "maxItems": MAX_CRITERIA} for key in KINDS}
        return {"type": "object", "properties": lists, "required": [*KINDS], "additionalProperties": False}

    def read(self, text: str) -> tuple[Rubric, ...]:
        """The criteria of an answer. Raises InvalidAnswerError for more than `MAX_CRITERIA`, for none that is wanted,
        and for one that is not exactly a title and a distinct description."""
        answer = json_object(text)
        if sorted(answer) != sorted(KINDS):
            raise InvalidAnswerError(f"the keys should be {' and '.join(KINDS)}, found {', '.join(answer) or 'none'}")
        rubrics = tuple(rubric for key, wanted in KINDS.items() for rubric in _criteria(answer[key], key, wanted))
        if len(rubrics) > MAX_CRITERIA:
            raise InvalidAnswerError(f"there should be {MAX_CRITERIA} criteria at most, found {len(rubrics)}")
        if not any(rubric.wanted for rubric in rubrics):
            raise InvalidAnswerError("there should be a positive criterion at least")
        if len({rubric.description.lower() for rubric in rubrics}) < len(rubrics):
            raise InvalidAnswerError("a criterion is there twice")
        return rubrics


def rubric_question(task: Task) -> RubricQuestion:
    """The question to a teacher about a task: its evidence and reasoning if any, the question, and a good answer."""
    parts = {"question": task.question, "good_answer": task.reference}
    if task.evidence is not None:
        parts = {"evidence": task.evidence.output, "reasoning": task.evidence.reasoning, **parts}
    return RubricQuestion(message="".join(tagged_block(name, text) for name, text in parts.items() if text))


class RubricWriter:
    """Writes the criteria of tasks with the model behind `client`."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    @property
    def model(self) -> str:
        """The model's name, as its server has it."""
        return str(self._client.settings["model"])

    async def write(self, task: Task) -> tuple[Rubric, ...]:
        """One to five criteria, at least one of them wanted. Raises NoAnswerError if the teacher does not answer, and
        InvalidAnswerError if its answer is invalid twice."""
        return await self._client.ask(rubric_question(task))


def _criteria(entries: Any, key: str, wanted: bool) -> Iterator[Rubric]:
    if not isinstance(entries, list):
        raise InvalidAnswerError(f"{key} should be a list")
    for at, entry in enumerate(entries):
        texts = entry if isinstance(entry, dict) else {}
        if sorted(texts) != ["description", "title"] or not all(_is_text(text) for text in texts.values()):
            raise InvalidAnswerError(f"{key}.{at} should have a title and a description, and nothing else")
        title, description = (" ".join(texts[name].split()) for name in ("title", "description"))
        if len(title.split()) > MAX_TITLE_WORDS:
            raise InvalidAnswerError(f"{key}.{at}.title should have two to six words")
        yield Rubric(title=title, description=description, wanted=wanted)


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())
