"""Two-turn search episodes of a random model: it writes a query, reads the results, and answers.

The weights are random, so lengths are drawn and not learned: the query and the answer of each episode end after a drawn
number of tokens. The query is the sampled text.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoTokenizer

from benchmarks.materials import passages
from benchmarks.workloads import MEAN, MOST, PROMPT, SIBLINGS, geometric
from sleuth.render import decode, encode
from sleuth.retrieval.bm25 import Bm25
from sleuth.types import Action, Piece, Reply, StopReason

PROMPTS = 8
QUERY_MEAN, QUERY_MOST = 24, 64
PASSAGES = 24
BLOCK_CHARACTERS = 1_700
"""About 400 tokens."""

OPENING = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
RESULTS = ("\n<|im_start|>tool\n", "<|im_end|>\n<|im_start|>assistant\n")
"""The text around a prompt and around results; `materials.CHAT` renders the same for TRL."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode: a prompt, and the numbers of tokens of its query and its answer."""

    prompt: str
    query: int
    answer: int


class Library:
    """The retriever of both sides: BM25 over the generated world, with passages cut to a block of one length."""

    def __init__(self, folder: Path, characters: int = BLOCK_CHARACTERS) -> None:
        self.index = Bm25(folder / "index")
        self.characters = characters

    def search(self, query: str) -> str:
        """Look something up.

        Args:
            query: What to look for.

        Returns:
            The passages found, one a line.
        """
        [found] = _result(self.index.search([query], PASSAGES))
        return "\n".join(f"{passage.title}: {passage.text}" for passage in found)[: self.characters]


class TwoTurns:
    """An episode in our rollout: the first turn is the query, the second ends it."""

    def __init__(self, episode: Episode, library: Library) -> None:
        self.episode = episode
        self.library = library
        self.turns = 0

    async def open(self) -> Reply:
        """The prompt in its chat frame."""
        return Reply(pieces=(Piece(text=opening(self.episode), author="template"),), max_tokens=self.episode.query)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The passages after the first turn, the end after the second."""
        self.turns += 1
        if self.turns > 1:
            return Reply(action=Action(kind="answer", text=text), done="answered")
        before, after = RESULTS
        pieces = (
            Piece(text=before, author="template"),
            Piece(text=self.library.search(text)),
            Piece(text=after, author="template"),
        )
        return Reply(pieces=pieces, action=Action(kind="search", text=text), max_tokens=self.episode.answer)


def draw_episodes(folder: Path) -> list[Episode]:
    """64 episodes, siblings of 8 prompts of 200 tokens with their frame, with geometric lengths of query and answer."""
    draw = random.Random("episodes")
    return [
        Episode(
            prompt=prompt,
            query=geometric(draw, QUERY_MEAN, QUERY_MOST),
            answer=geometric(draw, MEAN, MOST),
        )
        for prompt in _prompts(folder, draw)
        for _ in range(SIBLINGS)
    ]


def brief_episodes() -> list[Episode]:
    """As many episodes of a few tokens with other prompts, to load all code before the timing."""
    return [Episode(prompt=f"{at}?", query=2, answer=2) for at in range(PROMPTS) for _ in range(SIBLINGS)]


def opening(episode: Episode) -> str:
    """The prompt in its frame."""
    return OPENING[0] + episode.prompt + OPENING[1]


def reward_of(tokens: Sequence[int]) -> float:
    """A reward that differs between siblings and is never their mean, so that every row has a gradient."""
    return sum(tokens) * 0.618034 % 1


def _prompts(folder: Path, draw: random.Random) -> list[str]:
    """Texts of the world, cut to the length of a prompt."""
    tokenizer, texts = AutoTokenizer.from_pretrained(folder / "small"), passages(folder)
    frame = 12
    return [
        decode(tokenizer, encode(tokenizer, "\n".join(draw.sample(texts, 30)))[: PROMPT - frame])
        for _ in range(PROMPTS)
    ]


def _result(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never suspends, such as BM25's: TRL calls its tools outside an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError("the index waited for something")
