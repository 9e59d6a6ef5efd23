"""A language model teacher that writes thoughts for a text as places and thoughts, without copying the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.judges.http import JsonClient
from sleuth.judges.judge_prompts import InvalidAnswerError, json_object, prompt_text, tagged_block
from sleuth.think.splicing import THINK, break_offsets, number_places, place_brackets
from sleuth.types import Thought

MAX_THOUGHTS = 6
"""Per text (arXiv:2601.21343 and its small reproduction have three to six)."""
MAX_WORDS = 90  # per thought
PROMPT = prompt_text("thoughts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtQuestion:
    """The question to a teacher about a text with numbered `places` (character offsets). `forbidden` are the tags of a
    thought."""

    text: str
    places: tuple[int, ...]
    forbidden: tuple[str, ...]

    @property
    def name(self) -> str:
        """The form's name."""
        return "thoughts"

    @property
    def prompt(self) -> str:
        """The system message."""
        mark_open, mark_close = place_brackets(self.text)
        return PROMPT.replace("{example}", f"{mark_open}7{mark_close}.")

    @property
    def message(self) -> str:
        """The user message."""
        return tagged_block("text", number_places(self.text, self.places))

    @property
    def entries(self) -> int:
        """Always 1."""
        return 1

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; it cannot express that each place is named once."""
        place = {"type": "integer", "minimum": 1, "maximum": len(self.places)}
        keys = {"place": place, "thought": {"type": "string"}}
        entry = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
        thoughts = {"type": "array", "items": entry, "minItems": 1, "maxItems": MAX_THOUGHTS}
        return {
            "type": "object",
            "properties": {"thoughts": thoughts},
            "required": ["thoughts"],
            "additionalProperties": False,
        }

    def read(self, text: str) -> tuple[Thought, ...]:
        """The thoughts of an answer, in the order of the text. Raises InvalidAnswerError for none, for more than
        `MAX_THOUGHTS`, for an unknown or repeated place, and for a thought that is empty, too long or tagged."""
        answer = json_object(text)
        if [*answer] != ["thoughts"] or not isinstance(answer["thoughts"], list):
            raise InvalidAnswerError(f"there should be a list of thoughts, found {', '.join(answer) or 'nothing'}")
        if not 1 <= len(answer["thoughts"]) <= MAX_THOUGHTS:
            raise InvalidAnswerError(f"there should be one to {MAX_THOUGHTS} thoughts, found {len(answer['thoughts'])}")
        thoughts = sorted(self._thoughts(answer["thoughts"]), key=lambda thought: thought.at)
        if len({thought.at for thought in thoughts}) < len(thoughts):
            raise InvalidAnswerError("a place is named twice")
        return tuple(thoughts)

    def _thoughts(self, entries: Sequence[Any]) -> Iterator[Thought]:
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or sorted(entry) != ["place", "thought"]:
                raise InvalidAnswerError(f"thoughts.{number} should have a place and a thought, and nothing else")
            place, thought = entry["place"], entry["thought"]
            if type(place) is not int or not 1 <= place <= len(self.places):
                raise InvalidAnswerError(f"thoughts.{number}.place should be a number from 1 to {len(self.places)}")
            words = thought.split() if isinstance(thought, str) else []
            if not 1 <= len(words) <= MAX_WORDS:
                raise InvalidAnswerError(f"thoughts.{number}.thought should have one to {MAX_WORDS} words")
            if any(tag in thought for tag in (*self.forbidden, *place_brackets(self.text))):
                raise InvalidAnswerError(f"thoughts.{number}.thought should have no tags")
            yield Thought(at=self.places[place - 1], text=" ".join(words))


class ThoughtWriter:
    """Writes thoughts with the model behind `client`."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    @property
    def model(self) -> str:
        """The teacher's name."""
        return str(self._client.settings["model"])

    async def write(self, text: str) -> tuple[Thought, ...]:
        """1 to `MAX_THOUGHTS` thoughts, in the order of the text. Raises NoAnswerError if the teacher does not answer,
        and InvalidAnswerError if its answer is invalid twice or the text has no place for a thought."""
        places = tuple(break_offsets(text))
        if not places:
            raise InvalidAnswerError("the text has no place for a thought: it is one sentence")
        return await self._client.ask(ThoughtQuestion(text=text, places=places, forbidden=(THINK.open, THINK.close)))
