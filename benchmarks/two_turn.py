"""Sampling two-turn episodes with a retriever: our rollout against `generate` turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.episodes import RESULTS, Episode, Library, TwoTurns, opening
from benchmarks.samplers import CONTEXT, GenerateSampler, open_engine
from benchmarks.workloads import SIBLINGS, Request
from sleuth.engines.local.engine import LocalEngine
from sleuth.render import Renderer, decode, encode
from sleuth.rollout import Rollout
from sleuth.types import Group, Task


class OurEpisodes:
    """`Rollout.groups` on the in-process engine."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_engine(folder / "small")

    def write(self, episodes: Sequence[Episode], library: Library) -> int:
        """Samples all episodes; returns the number of sampled tokens."""
        groups = play_groups(self.engine, episodes, library, step=0)
        return sum(
            len(segment.tokens)
            for group in groups
            for episode in group.episodes
            for segment in episode.trajectory.segments
            if segment.author == "policy"
        )


class GenerateEpisodes:
    """`generate` on `rows` episodes at a time, as in TRL's loop: the first turn, the tools, and the second turn with
    prompt, query and passages computed again."""

    def __init__(self, folder: Path, *, rows: int, cache: str | None = None) -> None:
        self.sampler = GenerateSampler(folder / "small", rows=rows, cache=cache)
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "small")

    def write(self, episodes: Sequence[Episode], library: Library) -> int:
        """Samples all episodes; returns the number of sampled tokens."""
        opened = [self._tokens(opening(episode)) for episode in episodes]
        queries = self._turn(opened, [episode.query for episode in episodes])
        blocks = [self._results(library.search(decode(self.tokenizer, query))) for query in queries]
        read = [(*first, *query, *block) for first, query, block in zip(opened, queries, blocks, strict=True)]
        answers = self._turn(read, [episode.answer for episode in episodes])
        return sum(len(tokens) for tokens in (*queries, *answers))

    def _turn(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> list[list[int]]:
        turn = [
            Request(prompt=prompt, length=length, key=(0, 0)) for prompt, length in zip(prompts, lengths, strict=True)
        ]
        return self.sampler.write(turn)

    def _results(self, block: str) -> tuple[int, ...]:
        return self._tokens(RESULTS[0] + block + RESULTS[1])

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(encode(self.tokenizer, text))


PLAYERS = {"ours": OurEpisodes, "generate": GenerateEpisodes}


def play_groups(engine: LocalEngine, episodes: Sequence[Episode], library: Library, *, step: int) -> list[Group]:
    """All episodes at once, as groups of siblings."""
    rollout = Rollout(
        engine=engine, renderer=Renderer(engine.tokenizer), context=CONTEXT, temperature=1.0, key=(0, 0, step)
    )
    tasks = [Task(id=str(at), question="", golden_answers=()) for at in range(len(episodes) // SIBLINGS)]
    waiting = {task.id: iter(episodes[at * SIBLINGS : (at + 1) * SIBLINGS]) for at, task in enumerate(tasks)}
    return asyncio.run(
        rollout.groups(tasks, lambda task, *_: TwoTurns(next(waiting[task.id]), library), samples=SIBLINGS)
    )
