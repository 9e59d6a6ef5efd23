"""A language model as the one who writes the criteria that answers to a question are judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sleuth.judges.asking import Asker
from sleuth.judges.forms import NotAVerdictError, json_object, material, prompt_text
from sleuth.types import Rubric, Task

MOST = 5
"""Criteria of one question, of both kinds."""
LONGEST_TITLE = 12  # words; a title that is longer is a description
KINDS = {"positive_rubrics": True, "negative_rubrics": False}
"""Whether the criteria under a key are wanted."""
PROMPT = prompt_text("rubrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricQuestion:
    """What a teacher is asked: the user's message."""

    message: str

    @property
    def name(self) -> str:
        """The form's."""
        return "rubrics"

    @property
    def prompt(self) -> str:
        """The system message."""
        return PROMPT

    @property
    def entries(self) -> int:
        """One answer."""
        return 1

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; that there are `MOST` of both kinds together it cannot say."""
        keys = {"title": {"type": "string"}, "description": {"type": "string"}}
        criterion = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
        lists = {key: {"type": "array", "items": criterion, "maxItems": MOST} for key in KINDS}
        return {"type": "object", "properties": lists, "required": [*KINDS], "additionalProperties": False}

    def read(self, text: str) -> tuple[Rubric, ...]:
        """The criteria that an answer states. Raises NotAVerdictError for more than `MOST`, for none that is wanted,
        and for one that is not exactly a title and a description of its own."""
        answer = json_object(text)
        if sorted(answer) != sorted(KINDS):
            raise NotAVerdictError(f"the keys should be {' and '.join(KINDS)}, found {', '.join(answer) or 'none'}")
        rubrics = tuple(rubric for key, wanted in KINDS.items() for rubric in _criteria(answer[key], key, wanted))
        if len(rubrics) > MOST:
            raise NotAVerdictError(f"there should be {MOST} criteria at most, found {len(rubrics)}")
        if not any(rubric.wanted for rubric in rubrics):
            raise NotAVerdictError("there should be a positive criterion at least")
        if len({rubric.description.lower() for rubric in rubrics}) < len(rubrics):
            raise NotAVerdictError("a criterion is there twice")
        return rubrics


def rubric_question(task: Task) -> RubricQuestion:
    """What a teacher is asked about a task."""
    parts = {"question": task.question, "good_answer": task.reference}
    if task.evidence is not None:
        parts = {"evidence": task.evidence.output, "reasoning": task.evidence.reasoning, **parts}
    return RubricQuestion(message="".join(material(name, text) for name, text in parts.items() if text))


class RubricWriter:
    """Writes the criteria of tasks with the model that `asker` asks."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def write(self, task: Task) -> tuple[Rubric, ...]:
        """From one to five criteria, one of them wanted at least. Raises NoAnswerError where the teacher does not
        answer, and NotAVerdictError where it twice says something else."""
        return await self._asker.ask(rubric_question(task))


def _criteria(found: Any, key: str, wanted: bool) -> Iterator[Rubric]:
    if not isinstance(found, list):
        raise NotAVerdictError(f"{key} should be a list")
    for at, entry in enumerate(found):
        texts = entry if isinstance(entry, dict) else {}
        if sorted(texts) != ["description", "title"] or not all(_is_text(text) for text in texts.values()):
            raise NotAVerdictError(f"{key}.{at} should have a title and a description, and nothing else")
        title, description = (" ".join(texts[name].split()) for name in ("title", "description"))
        if len(title.split()) > LONGEST_TITLE:
            raise NotAVerdictError(f"{key}.{at}.title should have two to six words")
        yield Rubric(title=title, description=description, wanted=wanted)


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())
