"""Rows in the style of a refiner before reinforcement learning: it often cites the first snippet, and often answers
although no snippet states the answer.

Each row is a question about a small world, a tool output, a thought and an answer. Reinforcement learning can find the
honest answers among them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sleuth.cite.world_citing import THINKING, drawn, honest_answer, thought_ending
from sleuth.cite.world_tool_outputs import Fact, Snippet, ToolOutputs, as_text, fact_of, reasoning_of
from sleuth.search.world import goal
from sleuth.types import Piece
from sleuth.world.library import Library
from sleuth.world.questions import Hop
from sleuth.world.text import Row, TextRows, WorldText

CITE_FIRST_RATE = 0.6
"""Probability of citing the first snippet for all facts."""
ANSWER_ANYWAY_RATE = 0.5
"""Probability of answering with another entity's value if no snippet states the right one."""


def refining(rows: TextRows, rng: random.Random) -> Row:
    """A question with its tool output, as the environment formats them, then a thought and an answer."""
    world, question = drawn(rows, rng)
    _, snippets = ToolOutputs(world, Library(world, rng), rows.split, rng).draw(question)
    asked = f"Question: {question.text}\nReasoning: {reasoning_of(question.hops)}\n"
    output = THINKING.information.around(f"\n{as_text(snippets)}\n")
    hops, stated = _believed(rng, question.hops, snippets)
    thought = "".join(_thoughts(hops, stated))
    answer = THINKING.answer.around(honest_answer(hops, stated))
    return [
        Piece(text=f"{asked}{output}", author="env"),
        Piece(text=f"{THINKING.think.around(thought)}{answer}", author="teacher"),
    ]


def _thoughts(hops: Sequence[Hop], stated: dict[Fact, str]) -> Iterator[str]:
    for hop in hops:
        yield f"{goal(hop)} is{thought_ending(hop, stated.get(fact_of(hop)))}"
        if fact_of(hop) not in stated:
            return


def _believed(
    rng: random.Random, hops: Sequence[Hop], snippets: Sequence[Snippet]
) -> tuple[Sequence[Hop], dict[Fact, str]]:
    """The hops with the values that the refiner believes, and the snippet that it cites for each fact."""
    stated = {fact: snippet.id for snippet in snippets for fact in snippet.facts}
    believed = []
    for hop in hops:
        if fact_of(hop) not in stated and rng.random() < ANSWER_ANYWAY_RATE:
            alike = [fact for fact in stated if fact[1] == hop.relation]
            if alike:
                other = rng.choice(alike)
                hop = Hop(subject=hop.subject, relation=hop.relation, value=other[2])
                stated[fact_of(hop)] = stated[other]
        believed.append(hop)
    if rng.random() < CITE_FIRST_RATE:
        stated = dict.fromkeys(stated, snippets[0].id)
    return believed, stated


REFINING = WorldText(write=refining)
