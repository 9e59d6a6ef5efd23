"""Two-turn search episodes of a model that knows nothing: it writes a query, reads what the index finds, and answers.

The weights are random, so lengths are set and not learned: each episode's query and answer end after as many tokens as
were drawn for it. What is looked up is the text that was sampled.
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
"""What stands around a prompt and around results: `materials.CHAT` renders the same for TRL."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What one episode is made of: a prompt, and how many tokens its query and its answer have."""

    prompt: str
    query: int
    answer: int


class Library:
    """The retriever that both sides ask: BM25 over the generated world, the passages cut to a block of one length."""

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
    """An episode as our rollout plays it: the first turn is looked up, the second ends it."""

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
    """As many episodes in a few tokens, with other prompts: what loads all code before anything is timed."""
    return [Episode(prompt=f"{at}?", query=2, answer=2) for at in range(PROMPTS) for _ in range(SIBLINGS)]


def opening(episode: Episode) -> str:
    """The prompt in its frame."""
    return OPENING[0] + episode.prompt + OPENING[1]


def reward_of(tokens: Sequence[int]) -> float:
    """A reward that differs between siblings and never is their mean: every row must pull."""
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
    """The result of a coroutine that never waits, as BM25's: TRL calls its tools from outside an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError("the index waited for something")
