"""How well a base model reads: the share of held-out facts that it writes after a search for the name."""

from __future__ import annotations

import asyncio
import random

from sleuth.engines.local.engine import LocalEngine
from sleuth.learn.models import load_model
from sleuth.render import Renderer, encode
from sleuth.retrieval.bm25 import Bm25
from sleuth.search.world import DIALECT, goal, results
from sleuth.types import Passage, Piece, Sampling
from sleuth.world.facts import make_world
from sleuth.world.library import Article, Library
from sleuth.world.names import split_of
from sleuth.world.questions import Hop, one_hops

QUESTIONS = 200


def share_read(base: str, index: Bm25) -> float:
    """The share of 200 held-out subjects about which the model writes the right fact after a search."""
    model, tokenizer = load_model(base, dtype="float32", device="cpu")
    engine, renderer = LocalEngine(model, tokenizer, slots=32, context=512), Renderer(tokenizer)

    async def read(number: int, hop: Hop) -> bool:
        [found] = await index.search([hop.subject], DIALECT.top_k)
        search = DIALECT.think.around(goal(hop)) + DIALECT.search.around(f" {hop.subject}")
        answer_start = f"{DIALECT.think.open}{goal(hop)} is"
        tokens = [
            *encode(tokenizer, search),
            *renderer.render(Piece(text=results(_as_articles(found)))).tokens,
            *encode(tokenizer, answer_start),
        ]
        limits = Sampling(max_tokens=8, temperature=0.0, stops=(DIALECT.think.close,), key=(number,))
        completion = await engine.complete(tokens, limits)
        return completion.text == f" {hop.value}{DIALECT.think.close}"

    async def read_all() -> list[bool]:
        return await asyncio.gather(*(read(number, hop) for number, hop in enumerate(_held_out_hops())))

    return sum(asyncio.run(read_all())) / QUESTIONS


def _held_out_hops() -> list[Hop]:
    world, rng = make_world(0, 2000), random.Random(0)
    library = Library(world, random.Random(0))
    subjects = [name for name in (*world.people, *world.works, *world.firms) if split_of(name) == "test"]
    return [rng.choice([*one_hops(library, subject)])[0] for subject in rng.sample(subjects, QUESTIONS)]


def _as_articles(passages: list[Passage]) -> list[Article]:
    return [Article(title=p.title, text=p.text, about=p.title, facts={}) for p in passages]
