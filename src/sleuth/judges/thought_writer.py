"""A language model as the one who thinks while reading: it names places and thoughts, and never copies the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.data.splicing import breaks, marks, numbered
from sleuth.judges.asking import Asker
from sleuth.judges.forms import NotAVerdictError, json_object, material, prompt_text
from sleuth.types import Thought

MOST = 6
"""Thoughts in a text (arXiv:2601.21343 and its small reproduction have three to six)."""
LONGEST = 90  # words of a thought
PROMPT = prompt_text("thoughts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtQuestion:
    """What a teacher is asked about a text with so many numbered `places`. `forbidden` are the tags of a thought."""

    text: str
    places: tuple[int, ...]
    forbidden: tuple[str, ...]

    @property
    def name(self) -> str:
        """The form's."""
        return "thoughts"

    @property
    def prompt(self) -> str:
        """The system message."""
        mark_open, mark_close = marks(self.text)
        return PROMPT.replace("{example}", f"{mark_open}7{mark_close}.")

    @property
    def message(self) -> str:
        """The user's message."""
        return material("text", numbered(self.text, self.places))

    @property
    def entries(self) -> int:
        """One answer."""
        return 1

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; that each place is named once it cannot say."""
        place = {"type": "integer", "minimum": 1, "maximum": len(self.places)}
        keys = {"place": place, "thought": {"type": "string"}}
        entry = {"type": "object", "properties": keys, "required": [*keys], "additionalProperties": False}
        thoughts = {"type": "array", "items": entry, "minItems": 1, "maxItems": MOST}
        return {
            "type": "object",
            "properties": {"thoughts": thoughts},
            "required": ["thoughts"],
            "additionalProperties": False,
        }

    def read(self, text: str) -> tuple[Thought, ...]:
        """The thoughts that an answer states, in the order of the text. Raises NotAVerdictError for none, for more than
        `MOST`, for a place that is not there or named twice, and for a thought that is empty, too long or a tag."""
        answer = json_object(text)
        if [*answer] != ["thoughts"] or not isinstance(answer["thoughts"], list):
            raise NotAVerdictError(f"there should be a list of thoughts, found {', '.join(answer) or 'nothing'}")
        if not 1 <= len(answer["thoughts"]) <= MOST:
            raise NotAVerdictError(f"there should be one to {MOST} thoughts, found {len(answer['thoughts'])}")
        thoughts = sorted(self._thoughts(answer["thoughts"]), key=lambda thought: thought.at)
        if len({thought.at for thought in thoughts}) < len(thoughts):
            raise NotAVerdictError("a place is named twice")
        return tuple(thoughts)

    def _thoughts(self, found: Sequence[Any]) -> Iterator[Thought]:
        for number, entry in enumerate(found):
            if not isinstance(entry, dict) or sorted(entry) != ["place", "thought"]:
                raise NotAVerdictError(f"thoughts.{number} should have a place and a thought, and nothing else")
            place, thought = entry["place"], entry["thought"]
            if type(place) is not int or not 1 <= place <= len(self.places):
                raise NotAVerdictError(f"thoughts.{number}.place should be a number from 1 to {len(self.places)}")
            words = thought.split() if isinstance(thought, str) else []
            if not 1 <= len(words) <= LONGEST:
                raise NotAVerdictError(f"thoughts.{number}.thought should have one to {LONGEST} words")
            if any(tag in thought for tag in (*self.forbidden, *marks(self.text))):
                raise NotAVerdictError(f"thoughts.{number}.thought should have no tags")
            yield Thought(at=self.places[place - 1], text=" ".join(words))


class ThoughtWriter:
    """Thinks about texts with the model that `asker` asks; `forbidden` are the tags of a thought."""

    def __init__(self, asker: Asker, forbidden: tuple[str, ...]) -> None:
        self._asker = asker
        self._forbidden = forbidden

    @property
    def model(self) -> str:
        """Who thinks."""
        return str(self._asker.settings["model"])

    async def write(self, text: str) -> tuple[Thought, ...]:
        """From one to `MOST` thoughts, in the order of the text. Raises NoAnswerError where the teacher does not
        answer, and NotAVerdictError where it twice says something else, or the text has no place for a thought."""
        places = tuple(breaks(text))
        if not places:
            raise NotAVerdictError("the text has no place for a thought: it is one sentence")
        return await self._asker.ask(ThoughtQuestion(text=text, places=places, forbidden=self._forbidden))
