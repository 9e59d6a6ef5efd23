"""How the base model digests what a tool returned before it has met a reward: often citing whatever came first, and
seldom admitting that nothing answers.

Each row is a question about a small world of its own, what a tool returned for it, and a thought with an answer. What
reinforcement learning can find in it are the honest ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sleuth.types import Piece
from sleuth.world.citing import THINKING, found, said
from sleuth.world.facts import World
from sleuth.world.library import Library
from sleuth.world.names import Split
from sleuth.world.questions import Hop, Question
from sleuth.world.thoughts import Row, goal
from sleuth.world.tool_outputs import Fact, Snippet, ToolOutputs, as_text, fact_of, reasoning_of

CITES_THE_FIRST = 0.6
"""How often it takes all that it finds to be in the first snippet, whatever that states."""
ANSWERS_ANYWAY = 0.5
"""How often, where nothing answers, it tells something else of the same kind."""


def refining_row(rng: random.Random, question: Question, world: World, split: Split) -> Row:
    """One question with the tool output about it, as the environment asks it, and what is thought and answered."""
    _, snippets = ToolOutputs(world, Library(world, rng), split, rng).returned(question)
    asked = f"Question: {question.text}\nReasoning: {reasoning_of(question.hops)}\n"
    output = THINKING.information.around(f"\n{as_text(snippets)}\n")
    hops, stated = _believed(rng, question.hops, snippets)
    thought = "".join(_thoughts(hops, stated))
    answer = THINKING.answer.around(said(hops, stated))
    return [
        Piece(text=f"{asked}{output}", author="env"),
        Piece(text=f"{THINKING.think.around(thought)}{answer}", author="teacher"),
    ]


def _thoughts(hops: Sequence[Hop], stated: dict[Fact, str]) -> Iterator[str]:
    for hop in hops:
        yield f"{goal(hop)} is{found(hop, stated.get(fact_of(hop)))}"
        if fact_of(hop) not in stated:
            return


def _believed(
    rng: random.Random, hops: Sequence[Hop], snippets: Sequence[Snippet]
) -> tuple[Sequence[Hop], dict[Fact, str]]:
    """The look-ups with what is taken to be found, and in which snippet."""
    stated = {fact: snippet.id for snippet in snippets for fact in snippet.facts}
    believed = []
    for hop in hops:
        if fact_of(hop) not in stated and rng.random() < ANSWERS_ANYWAY:
            alike = [fact for fact in stated if fact[1] == hop.relation]
            if alike:
                told = rng.choice(alike)
                hop = Hop(subject=hop.subject, relation=hop.relation, value=told[2])
                stated[fact_of(hop)] = stated[told]
        believed.append(hop)
    if rng.random() < CITES_THE_FIRST:
        stated = dict.fromkeys(stated, snippets[0].id)
    return believed, stated
