"""How a language model is asked to judge: the words, the shape of its answer, and how strictly that is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NoReturn

from sleuth.types import Case, Pair, Verdict

REASON, QUOTE = "reason", "quote"
FENCE = "```"
CODE_LENGTH = 8  # hexadecimal digits


class NotAVerdictError(Exception):
    """The judge answered something else. The message says what was wrong, and is told to the judge when it is asked
    again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of question. `prompt` is the system message; the answer is one JSON object with the keys `reason`, `quote`
    where `quotes`, and `key`, whose value is one of `scores`; `scores` says what each is worth.

    The reason comes before the verdict, so that a model that writes from left to right thinks first.
    """

    name: str
    prompt: str
    key: str
    scores: Mapping[int | str, float]
    quotes: bool = True

    @property
    def keys(self) -> list[str]:
        """The keys of an answer, in order."""
        return [REASON, *([QUOTE] if self.quotes else []), self.key]

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        kinds: dict[str, Any] = {key: {"type": "string"} for key in self.keys}
        kinds[self.key] = {"enum": [*self.scores]}
        return {"type": "object", "properties": kinds, "required": self.keys, "additionalProperties": False}

    def read(self, text: str, quoted: str) -> Verdict:
        """The verdict that an answer states; its quote is kept where it does stand in `quoted`. Raises NotAVerdictError
        for an answer that is not exactly of the form: nothing is picked out of prose, clamped or guessed."""
        return self.verdict_of(json_object(text), quoted)

    def verdict_of(self, answer: Mapping[str, Any], quoted: str) -> Verdict:
        """As `read`, of an object that was read already."""
        answer = dict(answer)
        if sorted(answer) != sorted(self.keys):
            raise NotAVerdictError(f"the keys should be {', '.join(self.keys)}, found {', '.join(answer) or 'none'}")
        verdict = answer.pop(self.key)
        for key, value in answer.items():
            if not isinstance(value, str):
                raise NotAVerdictError(f"{key} should be a string")
        if not any(type(verdict) is type(known) and verdict == known for known in self.scores):  # True == 1
            expected = ", ".join(json.dumps(known) for known in self.scores)
            raise NotAVerdictError(f"{self.key} should be one of {expected}, found {json.dumps(verdict)[:40]}")
        reason, quote = (" ".join(sound(answer.get(key, "")).split()) for key in (REASON, QUOTE))
        stands = quote in " ".join(quoted.split())
        return Verdict(score=self.scores[verdict], reason=reason, evidence=quote if stands else "")


def prompt_text(name: str) -> str:
    """The words of a form."""
    return files("sleuth").joinpath("judges", "prompts", f"{name}.txt").read_text(encoding="utf-8").strip()


HALVES: Mapping[int | str, float] = {0: 0.0, 1: 0.5, 2: 1.0}
SUPPORT = Form(name="support", prompt=prompt_text("support"), key="score", scores=HALVES)
CRITERION = Form(name="criterion", prompt=prompt_text("criterion"), key="score", scores=HALVES)
PAIR = Form(
    name="pair",
    prompt=prompt_text("pair"),
    key="better",
    scores={"first": 1.0, "second": 0.0, "tie": 0.5},
    quotes=False,
)
FORMS = (SUPPORT, CRITERION, PAIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A filled form: the user's message, and the text that a quote is to come from."""

    form: Form
    message: str
    quoted: str = ""

    @property
    def name(self) -> str:
        """The form's."""
        return self.form.name

    @property
    def entries(self) -> int:
        """One verdict."""
        return 1

    @property
    def prompt(self) -> str:
        """The system message."""
        return self.form.prompt

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer."""
        return self.form.schema

    def read(self, text: str) -> list[Verdict]:
        """The one verdict that an answer states. Raises NotAVerdictError."""
        return [self.form.read(text, self.quoted)]


def question_of(asked: Case | Pair) -> Question:
    """What a model is asked about a case or a pair. What many questions share comes first, so that a server that keeps
    the computation of common beginnings does it once."""
    if isinstance(asked, Pair):
        shared = _part("question", asked.question) + _part("evidence", asked.evidence)
        both = material("first", asked.first) + material("second", asked.second)
        return Question(form=PAIR, message=shared + both + _part("criterion", asked.criterion))
    if asked.criterion:
        message = answer_to_judge(asked.question, asked.evidence, asked.claim) + material("criterion", asked.criterion)
        return Question(form=CRITERION, message=message, quoted=asked.claim)
    shared = _part("question", asked.question) + _part("evidence", asked.evidence)
    message = (shared if asked.evidence else shared + material("evidence", "")) + material("claim", asked.claim)
    return Question(form=SUPPORT, message=message, quoted=asked.evidence)


def answer_to_judge(question: str, evidence: str, answer: str) -> str:
    """What comes before the criteria that an answer is judged by."""
    return _part("question", question) + _part("evidence", evidence) + material("answer", answer)


def _part(name: str, text: str) -> str:
    return material(name, text) if text else ""


def material(name: str, text: str) -> str:
    """A text between tags that it cannot close: their names end in a code made of the text itself."""
    text = sound(text)
    tag = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:CODE_LENGTH]}"
    return f"<{tag}>\n{text}\n</{tag}>\n"


def sound(text: str) -> str:
    """The text with a question mark for half of a surrogate pair, which no file and no request can hold."""
    return text.encode(errors="replace").decode()


def json_object(text: str) -> dict[str, Any]:
    """The whole text as one JSON object; a fence of backticks around it is allowed. Raises NotAVerdictError."""
    text = text.strip()
    if text.startswith(FENCE) and text.endswith(FENCE) and len(text) > 2 * len(FENCE):
        text = text[len(FENCE) : -len(FENCE)].removeprefix("json")
    try:
        answer = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_number)
    except (ValueError, RecursionError):  # a number may have too many digits
        raise NotAVerdictError("it should be one JSON object and nothing else") from None
    if not isinstance(answer, dict):
        raise NotAVerdictError("it should be one JSON object")
    return answer


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotAVerdictError("a key is there twice")
    return found


def _no_number(constant: str) -> NoReturn:
    raise NotAVerdictError(f"{constant} is no number")
