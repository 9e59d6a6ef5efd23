"""Who writes questions and answers them: a teacher, or a model of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sleuth.engines.local.plain_engine import open_engine
from sleuth.episodes.chat_template import ChatTemplate, Message
from sleuth.evaluation.eval_session import DEFAULT_CONTEXT
from sleuth.judges.http import JsonQuestion
from sleuth.judges.judge_prompts import InvalidAnswerError, closed_object, json_object, prompt_text, tagged_block
from sleuth.judges.pool import NoAnswerError, reply_of
from sleuth.learn.models import context_of, load_model
from sleuth.render import Renderer
from sleuth.types import Passage, Piece, Sampling

Answered = TypeVar("Answered")
ENTRY = closed_object({"question": {"type": "string"}, "answer": {"type": "string"}})
LONGEST = 300
"""Characters of a question or an answer that a teacher may write."""
TURN = 512
"""Tokens that a model of this process may write."""
SLOTS = 8


class Asked(Protocol):
    """What takes a question with a form of its answer: a `JsonClient`, or `ChatModel`."""

    async def ask(self, question: JsonQuestion[Answered]) -> Answered:
        """The parsed answer. Raises NoAnswerError or InvalidAnswerError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToWrite:
    """Asks for at most `most` questions with their answers about passages; about two, for questions that need both."""

    passages: Sequence[Passage]
    most: int
    entries: int = 1
    name: str = "questions"

    @property
    def prompt(self) -> str:
        """The system message."""
        return prompt_text("questions" if len(self.passages) == 1 else "two_hop").replace("{most}", str(self.most))

    @property
    def message(self) -> str:
        """The user message."""
        return _shown(self.passages)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        return closed_object({"questions": {"type": "array", "items": ENTRY, "maxItems": self.most}})

    def read(self, text: str) -> list[tuple[str, str]]:
        """(question, answer) of each. Raises InvalidAnswerError for another form."""
        entries = json_object(text).get("questions")
        if not isinstance(entries, list):
            raise InvalidAnswerError("there should be a list of questions")
        if not all(
            isinstance(one, dict) and _is_text(one.get("question")) and _is_text(one.get("answer")) for one in entries
        ):
            raise InvalidAnswerError("each of the questions should have a question and an answer")
        return [(" ".join(one["question"].split()), " ".join(one["answer"].split())) for one in entries[: self.most]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToAnswer:
    """Asks for the answer to a question from passages, or without any."""

    question: str
    passages: Sequence[Passage]
    entries: int = 1
    name: str = "answer"

    @property
    def prompt(self) -> str:
        """The system message."""
        return prompt_text("answer" if self.passages else "answer_unaided")

    @property
    def message(self) -> str:
        """The user message."""
        return _shown(self.passages) + tagged_block("question", self.question)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        return closed_object({"answer": {"type": "string"}})

    def read(self, text: str) -> str:
        """The answer. Raises InvalidAnswerError for another form."""
        answer = json_object(text).get("answer")
        if not isinstance(answer, str):
            raise InvalidAnswerError("there should be an answer, which may be empty")
        return answer.strip()


def _shown(passages: Sequence[Passage]) -> str:
    return "".join(tagged_block("passage", f"{passage.title}\n{passage.text}".strip()) for passage in passages)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes questions about passages, and is the `Reader` of the gates. `asked` opens the model `named` if needed."""

    asked: Callable[[], Asked]
    named: str

    def write(self, wanted: Sequence[ToWrite]) -> list[list[tuple[str, str]] | Exception]:
        """The questions about each, or why there are none."""
        return _gathered([self.asked().ask(one) for one in wanted])

    def answers(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[str | None]:
        """See `Reader`."""
        given = _gathered([self.asked().ask(ToAnswer(question=one, passages=passages)) for one, passages in asked])
        return [None if isinstance(answer, Exception) else answer for answer in given]


def _gathered(calls: Sequence[Coroutine[Any, Any, Answered]]) -> list[Answered | Exception]:
    """What each call returns, or why nothing. Raises NoAnswerError if none of them got an answer."""

    async def safely(call: Coroutine[Any, Any, Answered]) -> Answered | Exception:
        try:
            return await call
        except (NoAnswerError, InvalidAnswerError) as error:
            return error

    async def every() -> list[Answered | Exception]:
        return await asyncio.gather(*map(safely, calls))

    found = asyncio.run(every())
    if found and all(isinstance(one, NoAnswerError) for one in found):
        raise NoAnswerError(str(found[0]))
    return found


class ChatModel:
    """A checkpoint of this process that is asked as a teacher is, by its chat template, at temperature 0. Raises
    SleuthError for one without a template."""

    def __init__(self, name: str) -> None:
        model, tokenizer = load_model(name, dtype=None, device="auto")
        self._template, self._renderer = ChatTemplate(tokenizer), Renderer(tokenizer)
        self._engine = open_engine(model, tokenizer, slots=SLOTS, context=min(DEFAULT_CONTEXT, context_of(model)))
        self._asked = 0

    async def ask(self, question: JsonQuestion[Answered]) -> Answered:
        """See `Asked`."""
        messages = [
            Message(role="system", content=(Piece(text=question.prompt),)),
            Message(role="user", content=(Piece(text=question.message),)),
        ]
        prompt = [token for one in self._renderer.render_all(self._template.pieces(messages)) for token in one.tokens]
        room = self._engine.context - len(prompt)
        if room < 1:
            raise InvalidAnswerError(f"{len(prompt):,} tokens are more than the context of {self._engine.context:,}")
        self._asked += 1
        sampling = Sampling(max_tokens=min(room, TURN), temperature=0.0, key=(self._asked,))
        written = await self._engine.complete(tuple(prompt), sampling)
        text = self._renderer.tokenizer.decode(list(written.tokens), skip_special_tokens=True)
        return question.read(reply_of({"message": {"content": text}}).text)


def model_of(name: str) -> Writer:
    """The checkpoint as a writer."""
    chat = ChatModel(name)
    return Writer(asked=lambda: chat, named=name)
