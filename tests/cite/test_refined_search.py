"""A search agent that sees the claims of a refiner in place of its results."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from measured import episode_figures

from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.cite.env import RefineSetting
from sleuth.cite.refined_search import RefinedSetting, Refiner, with_refiner
from sleuth.dialect import DIALECTS
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.evaluate import mean_over_sets, question_record
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.setting import SearchSetting
from sleuth.types import Action, Passage, Piece, Sampling, Score, SleuthError, Task, Trajectory
from sleuth.world.tokens import make_tokenizer

TOKENIZER = make_tokenizer(200)
ADA = Passage(id="17", title="Ada Voss", text="Ada Voss, a painter, was born in Tarn in 1874.")
BO = Passage(id="4", title="Bo Lind", text="Bo Lind was born in Mere.")
TASK = Task(id="a", question="Where was Ada Voss born?", golden_answers=("Tarn",))


class Shelf:
    """Returns the same passages for every query."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = passages

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [list(self.passages) for _ in queries]


def refiner_that_writes(answer: str, context: int = 4096) -> tuple[Refiner, list[str]]:
    """A refiner that always writes the same answer, and the list of prompts that it got."""
    prompts: list[str] = []

    def script(prompt: str, limits: Sampling) -> str:
        prompts.append(prompt)
        return answer

    setting = RefineSetting(
        dialect=ANSWER_ONLY, prompt_name="bare", prompt="{question}", prompt_role="raw", template=None
    )
    session = EvalSession(model=cast(Any, None), tokenizer=TOKENIZER, setting=setting, context=4096)
    refiner = Refiner("refiner", session)
    refiner.__dict__["_rollout"] = Rollout(
        engine=ScriptedEngine(TOKENIZER, script),
        renderer=Renderer(TOKENIZER),
        context=context,
        temperature=0.0,
        key=(0,),
    )
    return refiner, prompts


def searching(*found: Passage) -> SearchSetting:
    return SearchSetting(
        dialect=DIALECTS["sleuth"],
        prompt_name="plain",
        prompt="Question: {question}\n",
        prompt_role="raw",
        template=None,
        retriever=Shelf(*found),
    )


def refined(setting: SearchSetting, refiner: Refiner) -> RefinedSetting:
    plain = {field.name: getattr(setting, field.name) for field in dataclasses.fields(SearchSetting)}
    return RefinedSetting(**plain, refiner=refiner)


async def first_reply(setting: SearchSetting, turn: str) -> tuple[str, Action]:
    """The reply to an agent's first turn, and the actions that were parsed from that turn."""
    env = setting.env(TASK)
    await env.open()
    reply = await env.reply(turn, "stop")
    assert reply.action is not None
    return "".join(piece.text for piece in reply.pieces if isinstance(piece, Piece)), reply.action


TURN = "<think> birthplace of Ada Voss</think><search> Ada Voss</search>"


def test_the_agent_sees_the_claims_in_place_of_the_passages() -> None:
    refiner, prompts = refiner_that_writes("<answer><snippet id=10> Ada Voss was born in Tarn.</snippet></answer>")
    text, action = asyncio.run(first_reply(refined(searching(ADA, BO), refiner), TURN))
    assert "Ada Voss | Ada Voss was born in Tarn." in text
    assert "painter" not in text
    assert "Mere" not in text
    assert action.passages == (Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn."),)
    [brief] = prompts
    assert "Question: Where was Ada Voss born?\nReasoning: birthplace of Ada Voss\n" in brief
    assert "<snippet id=10> Ada Voss | Ada Voss, a painter, was born in Tarn in 1874.</snippet>" in brief
    assert "<snippet id=11> Bo Lind | Bo Lind was born in Mere.</snippet>" in brief


@pytest.mark.parametrize(
    "answer",
    [
        "<answer>The tool output does not answer this.</answer>",
        "<answer><snippet id=99>Ada Voss was born in Mere.</snippet></answer>",  # cites what is not there
        "Ada Voss was born in Tarn.",  # no answer at all
    ],
)
def test_claims_that_cite_no_retrieved_passage_are_not_shown(answer: str) -> None:
    refiner, _ = refiner_that_writes(answer)
    text, action = asyncio.run(first_reply(refined(searching(ADA, BO), refiner), TURN))
    assert action.passages == ()
    assert text == asyncio.run(first_reply(searching(), TURN))[0]


@pytest.mark.parametrize(
    ("answer", "context", "abstained", "too_long"),
    [
        ("<answer><snippet id=10>Ada Voss was born in Tarn.</snippet></answer>", 4096, 0.0, 0.0),
        ("<answer>Nothing here.</answer>", 4096, 1.0, 0.0),
        ("<answer><snippet id=10>Ada Voss was born in Tarn.</snippet></answer>", 40, 0.0, 1.0),
    ],
)
def test_what_the_refiner_makes_of_results_is_a_figure_and_ends_no_evaluation(
    answer: str, context: int, abstained: float, too_long: float
) -> None:
    refiner, _ = refiner_that_writes(answer, context)
    turns = {0: TURN, 1: "<think> so</think><answer> Tarn</answer>"}
    rollout = Rollout(
        engine=ScriptedEngine(TOKENIZER, lambda text, limits: turns[limits.key[-1]]),
        renderer=Renderer(TOKENIZER),
        context=2048,
        temperature=0.0,
        key=(0,),
    )
    [group] = asyncio.run(rollout.groups([TASK], refined(searching(ADA), refiner).env, samples=2))
    score = Score(value=1.0, parts={"em": 1.0}, note="correct")
    found = episode_figures([(TASK, episode.whole, score) for episode in group.episodes])
    records = [json.loads(json.dumps(question_record(episode, score))) for episode in group.episodes]
    for name, value in {"refiner_abstained": abstained, "refiner_too_long": too_long}.items():
        assert (
            found[name].value
            == mean_over_sets([[record | {"id": str(at)} for at, record in enumerate(records)]])[name].value
            == value
        )
    assert "refiner_abstained" not in episode_figures([(TASK, Trajectory(segments=()), score)])


def test_a_model_that_searches_cannot_be_the_refiner() -> None:
    agent = EvalSession(model=cast(Any, None), tokenizer=TOKENIZER, setting=searching(ADA), context=4096)
    with pytest.raises(SleuthError, match=r"--refiner agent: was trained to search, not to refine; name a checkpoint"):
        Refiner("agent", agent)
    refiner, _ = refiner_that_writes("x")
    with pytest.raises(SleuthError, match="--refiner other: is for an agent that searches, but this model"):
        with_refiner(refiner.session, "other")
