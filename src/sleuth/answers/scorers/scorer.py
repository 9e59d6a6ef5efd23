"""A scorer: its source, the text of an episode that it reads (a view of a transcript), and the score of that text.

Also the strict scorer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sleuth.answers.match import exact_match
from sleuth.dialect import Dialect
from sleuth.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The text of an episode that a scorer reads, named for people by `label`. With `end` it includes the
    end-of-text token if the policy sampled one."""

    label: str
    prompt: bool = False
    last_turn: bool = False
    end: bool = False

    def text(self, transcript: Transcript) -> str | None:
        """The text; None if the last turn is needed and unknown."""
        if self.last_turn:
            return transcript.last_turn
        text = transcript.prompt + transcript.response if self.prompt else transcript.response
        return text + END if self.end and transcript.ended else text


LAST_TURN = View(label="the policy's last turn", last_turn=True)
RESPONSE = View(label="the response with its observations")
EVERYTHING = View(label="prompt and response with observations", prompt=True)
EVERYTHING_AND_END = View(label="prompt and response with observations and end-of-text", prompt=True, end=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """`score(text, golden_answers)` scores the text of `view`; None if the text cannot be read at all. `answer(text)`
    is what it takes for the answer there; None if it finds none.

    `source` names the system that it reproduces. `version` is raised whenever the same episode could score differently:
    a run that began under another version is not continued.
    """

    name: str
    source: str
    view: View
    score: Callable[[str, Sequence[str]], float | None]
    answer: Callable[[str], str | None]
    version: int = 1

    def score_transcript(self, transcript: Transcript, golden_answers: Sequence[str]) -> float | None:
        """The score of an episode; None means missing, not zero."""
        text = self.view.text(transcript)
        return None if text is None else self.score(text, golden_answers)

    def read_answer(self, transcript: Transcript) -> str | None:
        """What the scorer takes for the answer of an episode; None if it finds none."""
        text = self.view.text(transcript)
        return None if text is None else self.answer(text)


END = "<|im_end|>"
"""The end-of-text token in a transcript, whatever the tokenizer calls it."""

ENDS = (END, "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>")
"""Its spellings in a transcript that is given as text."""

RESULTS = "(?:information|result|tool_response)"
RESULTS_CLOSE = re.compile(f"</{RESULTS}>")
RESULTS_OPEN = re.compile(rf"</(?:search|tool_call)>(?:\s|<\|im_end\|>|<\|im_start\|>user)*<{RESULTS}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """`Transcript(prompt="Where was Ada born?", response="<answer>Tarn</answer>", last_turn="<answer>Tarn</answer>")`.

    `response` is everything after the prompt, observations and other insertions included. `last_turn` is what the
    policy wrote after the last of them; None if unknown. `ended`: the policy sampled the end-of-text token last, and
    `response` does not spell it.
    """

    prompt: str
    response: str
    last_turn: str | None
    ended: bool = False


def transcript_of(trajectory: Trajectory, end_token: int | None = None, opened: str = "") -> Transcript:
    """The transcript of a trajectory; the prompt is everything before the policy's first token. `end_token` is the id
    of the end-of-text token, which is never part of a segment's text. `opened` is a tag at the end of the prompt that
    counts as the first that the policy wrote."""
    turns = [index for index, segment in enumerate(trajectory.segments) if segment.author == "policy"]
    start = turns[0] if turns else len(trajectory.segments)
    texts = [segment.text for segment in trajectory.segments]
    last = trajectory.segments[turns[-1]] if turns else None
    return Transcript(
        prompt="".join(texts[:start]).removesuffix(opened),
        response=opened + "".join(texts[start:]),
        last_turn=(opened if len(turns) == 1 else "") + last.text if last else "",
        ended=last is not None and end_token is not None and last.tokens[-1:] == (end_token,),
    )


def transcript_from_text(prompt: str, response: str) -> Transcript:
    """The transcript of two strings, which do not say who wrote what.

    The last turn is what follows the last results, including a sentence inserted after a bad action and excluding a
    spelled end-of-text token. It is None if the last results were opened after a search and never closed.
    """
    closes = list(RESULTS_CLOSE.finditer(response))
    tail = response[closes[-1].end() :] if closes else response
    unclosed = any(opening.end() > len(response) - len(tail) for opening in RESULTS_OPEN.finditer(response))
    return Transcript(prompt=prompt, response=response, last_turn=None if unclosed else _without_end(tail))


def _without_end(text: str) -> str:
    """The text without trailing end-of-text tokens and white space. One pass: a broken policy may repeat the token
    thousands of times."""
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        name = next((name for name in ENDS if text.endswith(name, 0, end)), "")
        if not name:
            return text[:end]
        end -= len(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The strictly extracted answer, or why there is none."""

    answer: str | None
    fault: Literal["no_answer", "malformed"] | None = None


def extract(policy_turns: Sequence[str], answer_open: str = "<answer>", answer_close: str = "</answer>") -> Extracted:
    """The last closed answer element of the last turn the policy wrote; it must be the last thing there.

    `no_answer`: no answer tag in the last turn. `malformed`: an answer tag that is unclosed, nested, empty or followed
    by more than white space.
    """
    last = policy_turns[-1] if policy_turns else ""
    if answer_open not in last:
        return Extracted(answer=None, fault="malformed" if answer_close in last else "no_answer")
    _, _, tail = last.rpartition(answer_open)
    content, closed, rest = tail.partition(answer_close)
    if last.count(answer_open) > last.count(answer_close) or not closed or rest.strip() or not content.strip():
        return Extracted(answer=None, fault="malformed")
    return Extracted(answer=content.strip())


def _strict_answer(last_turn: str) -> str | None:
    return extract([last_turn]).answer


def _strict_score(last_turn: str, golden_answers: Sequence[str]) -> float:
    answer = _strict_answer(last_turn)
    return float(answer is not None and exact_match(answer, golden_answers))


STRICT = Scorer(name="strict", source="Sleuth", view=LAST_TURN, score=_strict_score, answer=_strict_answer)


GOLDEN = "Zyzzyva"
"""An answer that no prompt contains."""


def correct_answer_score(scorer: Scorer, prompt: str, dialect: Dialect) -> float:
    """The score of a thought and the correct answer after `prompt`, plain or boxed, whichever scores higher.

    It is 0 if the scorer and the prompt do not fit: `search_r1` after a prompt without an answer element, `research`
    in a dialect that stops before an end-of-text token can be sampled.
    """
    scores = []
    for answer in (GOLDEN, rf"\boxed{{{GOLDEN}}}"):
        turn = dialect.think.around("I know.") + "\n" + dialect.answer.around(answer)
        ended = dialect.answer.close not in dialect.stops
        transcript = Transcript(prompt=prompt, response=turn, last_turn=turn, ended=ended)
        scores.append(scorer.score_transcript(transcript, [GOLDEN]) or 0.0)
    return max(scores)


def elements(text: str, tag: str) -> list[str]:
    """The stripped contents of all closed elements, each from its first opening tag to the next closing tag.

    `elements("<answer> a </answer> <answer>b", "answer") == ["a"]`. Case-sensitive. One pass, however many tags are
    left open.
    """
    *closed, _ = text.split(f"</{tag}>")
    parts = (piece.partition(f"<{tag}>") for piece in closed)
    return [content.strip() for _, opened, content in parts if opened]
