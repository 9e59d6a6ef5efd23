"""What a scorer is made of: who published it, which text of an episode it reads, and what that text is worth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from sleuth.dialects import Dialect
from sleuth.rewards.match import exact_match
from sleuth.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The text of an episode that a scorer reads. `words` says which, to people; `end` keeps the name of the
    end-of-text token where the policy sampled one."""

    words: str
    prompt: bool = False
    last_turn: bool = False
    end: bool = False

    def of(self, transcript: Transcript) -> str | None:
        """The text; None where nobody can tell what the policy wrote in its last turn."""
        if self.last_turn:
            return transcript.last_turn
        text = transcript.prompt + transcript.response if self.prompt else transcript.response
        return text + END if self.end and transcript.ended else text


LAST_TURN = View(words="the policy's last turn", last_turn=True)
RESPONSE = View(words="the response with its observations")
EVERYTHING = View(words="prompt and response with observations", prompt=True)
EVERYTHING_AND_END = View(words="prompt and response with observations and end-of-text", prompt=True, end=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """`score(text, golden_answers)` is what the text of `view` is worth; None where the text cannot be read at all.

    `source` is whose behaviour this is. `version` is raised whenever the same episode could score differently: a run
    that began under another one is not continued.
    """

    name: str
    source: str
    view: View
    score: Callable[[str, Sequence[str]], float | None]
    version: int = 1

    def of(self, transcript: Transcript, golden_answers: Sequence[str]) -> float | None:
        """The score of an episode; None is missing, never a zero."""
        text = self.view.of(transcript)
        return None if text is None else self.score(text, golden_answers)


END = "<|im_end|>"
"""How a transcript spells the end-of-text token, whatever the tokenizer calls it."""

ENDS = (END, "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>")
"""What it may be called in a transcript that comes as text."""

RESULTS = "(?:information|result|tool_response)"
RESULTS_CLOSE = re.compile(f"</{RESULTS}>")
RESULTS_OPEN = re.compile(rf"</(?:search|tool_call)>(?:\s|<\|im_end\|>|<\|im_start\|>user)*<{RESULTS}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """`Transcript(prompt="Where was Ada born?", response="<answer>Tarn</answer>", last_turn="<answer>Tarn</answer>")`.

    `response` is all after the prompt, observations and other insertions too. `last_turn` is what the policy wrote
    after the last of them; None where that cannot be told. `ended` says that the policy sampled the end-of-text token
    last, where `response` does not spell it.
    """

    prompt: str
    response: str
    last_turn: str | None
    ended: bool = False


def transcript_of(trajectory: Trajectory, end_token: int | None = None) -> Transcript:
    """The prompt is all before the policy's first token; `end_token` is the id of the end-of-text token, which is
    never part of a segment's text."""
    turns = [at for at, segment in enumerate(trajectory.segments) if segment.author == "policy"]
    begin = turns[0] if turns else len(trajectory.segments)
    texts = [segment.text for segment in trajectory.segments]
    last = trajectory.segments[turns[-1]] if turns else None
    return Transcript(
        prompt="".join(texts[:begin]),
        response="".join(texts[begin:]),
        last_turn=last.text if last else "",
        ended=last is not None and end_token is not None and last.tokens[-1:] == (end_token,),
    )


def transcript_from_text(prompt: str, response: str) -> Transcript:
    """Two strings do not tell who wrote what. What follows the last results is taken for the policy's last turn, a
    sentence inserted after a bad action included, a spelled end-of-text token left out; if results were opened after a
    search and their closing tag was lost, nobody can tell where they end."""
    closes = list(RESULTS_CLOSE.finditer(response))
    tail = response[closes[-1].end() :] if closes else response
    unclosed = any(opening.end() > len(response) - len(tail) for opening in RESULTS_OPEN.finditer(response))
    return Transcript(prompt=prompt, response=response, last_turn=None if unclosed else _without_end(tail))


def _without_end(text: str) -> str:
    """In one pass from the end: a broken policy may repeat the token thousands of times."""
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
    """What a strict reader finds: an answer, or why there is none."""

    answer: str | None
    fault: Literal["no_answer", "malformed"] | None = None


def extract(policy_turns: Sequence[str], answer_open: str = "<answer>", answer_close: str = "</answer>") -> Extracted:
    """The last closed answer element of the last turn the policy wrote; it must be the last thing there.

    `no_answer`: no answer tag in the last turn. `malformed`: an answer tag, but unclosed, nested, empty or followed by
    more words. White space does not count.
    """
    last = policy_turns[-1] if policy_turns else ""
    if answer_open not in last:
        return Extracted(answer=None, fault="malformed" if answer_close in last else "no_answer")
    _, _, tail = last.rpartition(answer_open)
    content, closed, rest = tail.partition(answer_close)
    if last.count(answer_open) > last.count(answer_close) or not closed or rest.strip() or not content.strip():
        return Extracted(answer=None, fault="malformed")
    return Extracted(answer=content.strip())


def _strict_score(last_turn: str, golden_answers: Sequence[str]) -> float:
    answer = extract([last_turn]).answer
    return float(answer is not None and exact_match(answer, golden_answers))


STRICT = Scorer(name="strict", source="Sleuth", view=LAST_TURN, score=_strict_score)


Scores = Mapping[str, float | None]
"""What each scorer makes of one case: `{"strict": 0.0, "search_r1": 1.0}`; None is missing."""

TOLERANCE = 1e-9


def changes(scores: Sequence[Scores]) -> dict[tuple[str, str], int]:
    """How many cases two scorers tell apart, for every pair; a case that one of them cannot read is not counted."""
    names = list(scores[0]) if scores else []
    return {
        (one, other): sum(_differ(case[one], case[other]) for case in scores) for one, other in combinations(names, 2)
    }


def telling(scores: Sequence[Scores]) -> list[int]:
    """The places of cases that scorers do not agree on, the first of every pattern of scores, the commonest pattern
    first."""
    patterns: dict[tuple[float | None, ...], list[int]] = {}
    for at, case in enumerate(scores):
        values = tuple(case.values())
        if any(_differ(one, other) for one, other in combinations(values, 2)):
            patterns.setdefault(values, []).append(at)
    return [places[0] for places in sorted(patterns.values(), key=len, reverse=True)]


def _differ(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) > TOLERANCE


GOLDEN = "Zyzzyva"
"""An answer that no prompt holds."""


def worth_of_right(scorer: Scorer, prompt: str, dialect: Dialect) -> float:
    """The score of a thought and the right answer after `prompt`, plain or boxed, whichever is worth more.

    It is 0 where the scorer and the prompt do not fit: `search_r1` after a prompt without an answer element, `research`
    in a dialect that stops before an end-of-text token can be sampled.
    """
    worths = []
    for answer in (GOLDEN, rf"\boxed{{{GOLDEN}}}"):
        turn = dialect.think.around("I know.") + "\n" + dialect.answer.around(answer)
        ended = dialect.answer.close not in dialect.stops
        transcript = Transcript(prompt=prompt, response=turn, last_turn=turn, ended=ended)
        worths.append(scorer.of(transcript, [GOLDEN]) or 0.0)
    return max(worths)


def elements(text: str, tag: str) -> list[str]:
    """The contents of all paired elements, each from the first opening tag on to the next closing tag, stripped.

    `elements("<answer> a </answer> <answer>b", "answer") == ["a"]`. Tags are told apart by case. In one pass, however
    many tags a policy leaves open.
    """
    *closed, _ = text.split(f"</{tag}>")
    parts = (piece.partition(f"<{tag}>") for piece in closed)
    return [content.strip() for _, opened, content in parts if opened]
