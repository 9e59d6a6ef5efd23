"""The questions to a language model judge: their prompts, the JSON schemas of answers, and their strict parsing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NoReturn

from sleuth.host.escapes import replace_surrogates
from sleuth.types import AnySheet, Case, ClaimSheet, Pair, Sheet, Verdict

VERDICTS = "verdicts"
REASON, QUOTE = "reason", "quote"
FENCE = "```"
CODE_LENGTH = 8  # hexadecimal digits


class InvalidAnswerError(Exception):
    """The answer is not of the form. The message says what is wrong and is sent to the judge with the retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of question. `prompt` is the system message. The answer is one JSON object with the keys `reason`, `quote`
    if `quotes`, and `key`, whose value is one of `scores`, which maps it to a score.

    The reason comes before the verdict, so that the model thinks first.
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
        return closed_object(kinds)

    def verdict_of(self, answer: dict[str, Any], quoted: str) -> Verdict:
        """The verdict of a parsed answer; a quote is kept only if it occurs in `quoted`. Raises InvalidAnswerError
        unless the answer is exactly of the form: nothing is extracted from prose, clamped or guessed."""
        if sorted(answer) != sorted(self.keys):
            raise InvalidAnswerError(f"the keys should be {', '.join(self.keys)}, found {', '.join(answer) or 'none'}")
        verdict = answer.pop(self.key)
        for key, value in answer.items():
            if not isinstance(value, str):
                raise InvalidAnswerError(f"{key} should be a string")
        if not any(type(verdict) is type(known) and verdict == known for known in self.scores):  # True == 1
            expected = ", ".join(json.dumps(known) for known in self.scores)
            raise InvalidAnswerError(f"{self.key} should be one of {expected}, found {json.dumps(verdict)[:40]}")
        reason, quote = (" ".join(replace_surrogates(answer.get(key, "")).split()) for key in (REASON, QUOTE))
        exact = any(quote in " ".join(text.split()) for text in (quoted, spelled_out(quoted)))
        return Verdict(score=self.scores[verdict], reason=reason, evidence=quote if exact else "")


def prompt_text(name: str) -> str:
    """The system message of a form, from `prompts/`."""
    return files("sleuth").joinpath("judges", "prompts", f"{name}.txt").read_text(encoding="utf-8").strip()


GRADES: Mapping[int | str, float] = {0: 0.0, 1: 0.5, 2: 1.0}
SUPPORT = Form(name="support", prompt=prompt_text("support"), key="score", scores=GRADES)
CRITERION = Form(name="criterion", prompt=prompt_text("criterion"), key="score", scores=GRADES)
PAIR = Form(
    name="pair",
    prompt=prompt_text("pair"),
    key="better",
    scores={"first": 1.0, "second": 0.0, "tie": 0.5},
    quotes=False,
)
CRITERIA_SHEET = Form(name="sheet", prompt=prompt_text("sheet"), key="score", scores=GRADES, quotes=False)
CLAIMS_SHEET = Form(name="claims", prompt=prompt_text("claims"), key="score", scores=GRADES, quotes=False)
"""The forms of one entry of a sheet, without its number."""
FORMS = (SUPPORT, CRITERION, PAIR, CRITERIA_SHEET, CLAIMS_SHEET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A filled form: the user message, and the text that a quote must come from. On a sheet, the answer has so many
    `entries`, each with its number under the key `number`: `criterion` or `claim`."""

    form: Form
    message: str
    quoted: str = ""
    number: str = ""
    entries: int = 1

    @property
    def name(self) -> str:
        """The form's name."""
        return self.form.name

    @property
    def prompt(self) -> str:
        """The system message."""
        return self.form.prompt

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; of a sheet one object per entry, the number first, the score last."""
        if not self.number:
            return self.form.schema
        numbers = {"enum": [*range(1, self.entries + 1)]}
        entry = closed_object({self.number: numbers, **self.form.schema["properties"]})
        entries = {"type": "array", "items": entry, "minItems": self.entries, "maxItems": self.entries}
        return closed_object({VERDICTS: entries})

    def read(self, text: str) -> list[Verdict]:
        """The verdicts of an answer, in the order of the entries. Raises InvalidAnswerError if one is missing, repeated
        or malformed: a partial sheet could assign verdicts to the wrong entries."""
        answer = json_object(text)
        if not self.number:
            return [self.form.verdict_of(answer, self.quoted)]
        entries = answer.get(VERDICTS)
        if list(answer) != [VERDICTS] or not isinstance(entries, list):
            raise InvalidAnswerError(f"it should be one JSON object with the key {VERDICTS}, a list")
        if not all(isinstance(entry, dict) for entry in entries):
            raise InvalidAnswerError(f"each of the {VERDICTS} should be an object")
        numbers = [entry.pop(self.number, None) for entry in entries]
        if numbers != [*range(1, self.entries + 1)] or not all(type(number) is int for number in numbers):
            raise InvalidAnswerError(
                f"there should be an entry for each {self.number} from 1 to {self.entries}, in order"
            )
        return [self.form.verdict_of(entry, "") for entry in entries]


def question_of(item: Case | Pair | AnySheet) -> Question:
    """The question to a model about a case, a pair or a sheet. What siblings share comes first, for prefix caching."""
    if isinstance(item, Sheet):
        message = answer_blocks(item.question, item.evidence, item.answer)
        message += tagged_block("criteria", _numbered(item.criteria))
        return Question(form=CRITERIA_SHEET, message=message, number="criterion", entries=len(item.criteria))
    if isinstance(item, ClaimSheet):
        snippets = (tagged_block(f"snippet-{number}", text) for number, text in enumerate(item.snippets, start=1))
        claims = [f"(by {_snippets(indices)}) {claim}" for claim, indices in item.entries]
        message = "".join(snippets) + tagged_block("claims", _numbered(claims))
        return Question(form=CLAIMS_SHEET, message=message, number="claim", entries=len(item.entries))
    shared = _optional_block("question", item.question) + _optional_block("evidence", item.evidence)
    if isinstance(item, Pair):
        both = tagged_block("first", item.first) + tagged_block("second", item.second)
        return Question(form=PAIR, message=shared + both + _optional_block("criterion", item.criterion))
    if item.criterion:
        message = answer_blocks(item.question, item.evidence, item.claim) + tagged_block("criterion", item.criterion)
        return Question(form=CRITERION, message=message, quoted=item.claim)
    message = (shared if item.evidence else shared + tagged_block("evidence", "")) + tagged_block("claim", item.claim)
    return Question(form=SUPPORT, message=message, quoted=item.evidence)


def _numbered(lines: Sequence[str]) -> str:
    """Each text on a line of its own behind its number; a line break inside a text becomes a space."""
    return "\n".join(f"{number}. {' '.join(line.split())}" for number, line in enumerate(lines, start=1))


def _snippets(indices: Sequence[int]) -> str:
    """`snippet 1`, or `snippets 1, 2 and 3`."""
    *first, last = (str(index + 1) for index in indices)
    return f"snippets {', '.join(first)} and {last}" if first else f"snippet {last}"


def answer_blocks(question: str, evidence: str, answer: str) -> str:
    """The part of a message before the criteria: question, evidence and answer."""
    return (
        _optional_block("question", question) + _optional_block("evidence", evidence) + tagged_block("answer", answer)
    )


def _optional_block(name: str, text: str) -> str:
    return tagged_block(name, text) if text else ""


def tagged_block(name: str, text: str) -> str:
    """A text between tags that it cannot close, because their names end in a hash of the text, and in which the names
    of control tokens are spelled out: a server would otherwise read `<|im_end|>` as the end of the message."""
    text = spelled_out(replace_surrogates(text))
    tag = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:CODE_LENGTH]}"
    return f"<{tag}>\n{text}\n</{tag}>\n"


CONTROL_NAMES = re.compile(
    r"<(?=[|\uff5c])|(?<=[|\uff5c])>"
    r"|<(?=/?(?:s|bos|eos|pad|unk|mask|think|tools?|tool_call|tool_response|tool_outputs?|start_of_turn|end_of_turn)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|CLS|SEP|MASK|PAD|UNK)\])"
)
"""The brackets of names that tokenizers of the common model families read as control tokens or as turns."""


def spelled_out(text: str) -> str:
    """The text with a space inside the brackets of control tokens' names: `< |im_end| >`."""
    return CONTROL_NAMES.sub(lambda bracket: f" {bracket[0]}" if bracket[0] == ">" else f"{bracket[0]} ", text)


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these keys."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def json_object(text: str) -> dict[str, Any]:
    """The whole text as one JSON object; a fence of backticks around it is allowed. Raises InvalidAnswerError."""
    text = text.strip()
    if not text:
        raise InvalidAnswerError("it was empty; it should be one JSON object")
    if text.startswith(FENCE) and text.endswith(FENCE) and len(text) > 2 * len(FENCE):
        text = text[len(FENCE) : -len(FENCE)].removeprefix("json")
    try:
        answer = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_number)
    except (ValueError, RecursionError):  # a number may have too many digits
        raise InvalidAnswerError("it should be one JSON object and nothing else") from None
    if not isinstance(answer, dict):
        raise InvalidAnswerError("it should be one JSON object")
    return answer


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        raise InvalidAnswerError("a key is there twice")
    return distinct


def _no_number(constant: str) -> NoReturn:
    raise InvalidAnswerError(f"{constant} is no number")
