"""The tiny base model that the repository carries: it reads, and it is small."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from sleuth.build import load_model
from sleuth.engines.local import LocalEngine
from sleuth.evaluation.intervals import share
from sleuth.render import Renderer, encode
from sleuth.retrieval.bm25 import Bm25, build_index
from sleuth.types import Passage, Piece, Sampling
from sleuth.world.encyclopaedia import Article
from sleuth.world.facts import make_world
from sleuth.world.library import Library
from sleuth.world.names import split_of
from sleuth.world.questions import Hop, one_hops
from sleuth.world.thoughts import DIALECT, goal, results
from sleuth.world.write_world import write_world

BASE = Path(__file__).parents[1] / "models" / "tiny-base"
QUESTIONS = 200


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25:
    folder = tmp_path_factory.mktemp("base") / "world"
    write_world(folder, seed=0, people=2000)
    build_index(folder / "corpus.jsonl", folder / "index")
    return Bm25(folder / "index")


def held_out_hops() -> list[Hop]:
    world, rng = make_world(0, 2000), random.Random(0)
    library = Library(world, random.Random(0))
    subjects = [name for name in (*world.people, *world.works, *world.firms) if split_of(name) == "test"]
    return [rng.choice([*one_hops(library, subject)])[0] for subject in rng.sample(subjects, QUESTIONS)]


def as_articles(passages: list[Passage]) -> list[Article]:
    return [Article(title=p.title, text=p.text, about=p.title, facts={}) for p in passages]


def test_the_base_reads_what_a_search_for_a_held_out_name_finds(index: Bm25) -> None:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    engine, renderer = LocalEngine(model, tokenizer, slots=32, context=512), Renderer(tokenizer)

    async def read(number: int, hop: Hop) -> bool:
        [found] = await index.search([hop.subject], DIALECT.top_k)
        asked = DIALECT.think.around(goal(hop)) + DIALECT.search.around(f" {hop.subject}")
        begun = f"{DIALECT.think.open}{goal(hop)} is"
        tokens = [
            *encode(tokenizer, asked),
            *renderer.render(Piece(text=results(as_articles(found)))).tokens,
            *encode(tokenizer, begun),
        ]
        limits = Sampling(max_tokens=8, temperature=0.0, stops=(DIALECT.think.close,), key=(number,))
        written = await engine.complete(tokens, limits)
        return written.text == f" {hop.value}{DIALECT.think.close}"

    async def read_all() -> list[bool]:
        return await asyncio.gather(*(read(number, hop) for number, hop in enumerate(held_out_hops())))

    assert (share([float(right) for right in asyncio.run(read_all())]).value or 0) >= 0.9


def test_the_base_takes_at_most_two_megabytes() -> None:
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 2_000_000
