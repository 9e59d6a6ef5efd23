"""The rollout loop: what is recorded is what was seen and what was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from shelf import Shelf

from sleuth.dialect import DIALECTS
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import Renderer
from sleuth.rollout import Rollout, collect_chunks, play
from sleuth.search.env import SearchEnv
from sleuth.types import (
    Action,
    Chunk,
    Completion,
    Env,
    EpisodeKey,
    Group,
    Passage,
    Sampling,
    Score,
    Segment,
    SleuthError,
    Task,
)
from sleuth.world.tokens import make_tokenizer

TOKENIZER = make_tokenizer(200)
TARN = Passage(id="1", title="Tarn", text="Tarn is a town.")
TASKS = [Task(id=str(number), question=f"Question {number}?", golden_answers=("Tarn",)) for number in range(3)]


def diligent(text: str, sampling: Sampling) -> str:
    return (
        "<answer> Tarn</answer> and on" if "<information>" in text else "<think>hm</think><search> Tarn</search> junk"
    )


def groups(shelf: Shelf, context: int = 400, samples: int = 2, answer=diligent) -> list[Group]:
    def env(task: Task, key: EpisodeKey) -> SearchEnv:
        return SearchEnv(task, DIALECTS["sleuth"], "Question: {question}\n", shelf)

    return asyncio.run(rollout(answer, context).groups(TASKS, env, samples=samples))


def rollout(answer: Callable[[str, Sampling], str], context: int) -> Rollout:
    return Rollout(
        engine=ScriptedEngine(TOKENIZER, answer),
        renderer=Renderer(TOKENIZER),
        context=context,
        temperature=1.0,
        key=(0, 0, 1),
    )


def test_an_episode_is_prompt_query_results_and_answer_in_order() -> None:
    trajectory = groups(Shelf(TARN))[0].episodes[0].trajectory
    assert trajectory.text == (
        "Question: Question 0?\n<think>hm</think><search> Tarn</search>\n<information>\n[1] Tarn | Tarn is a town.\n"
        "</information>\n<answer> Tarn</answer>"
    )
    assert [action.kind for action in trajectory.actions] == ["search", "answer"]
    assert trajectory.stop == "answered"
    assert TOKENIZER.decode(trajectory.tokens) == trajectory.text
    assert trajectory.policy_text == "<think>hm</think><search> Tarn</search><answer> Tarn</answer>"


def test_groups_come_in_the_order_of_tasks_with_their_siblings_in_order() -> None:
    played = groups(Shelf(TARN), samples=3)
    assert [group.task.id for group in played] == ["0", "1", "2"]
    assert all([episode.sample for episode in group.episodes] == [0, 1, 2] for group in played)


def test_every_completion_has_its_own_sampling_key() -> None:
    keys: list[tuple[int, ...]] = []

    def watch(text: str, sampling: Sampling) -> str:
        keys.append(sampling.key)
        return diligent(text, sampling)

    groups(Shelf(TARN), answer=watch)
    assert len(set(keys)) == len(keys) == len(TASKS) * 2 * 2
    assert {len(key) for key in keys} == {6}


def test_a_failed_retriever_ends_the_episode_as_failed_with_the_query_on_record() -> None:
    for group in groups(Shelf(fails=True)):
        trajectory = group.episodes[0].trajectory
        assert trajectory.stop == "failed"
        assert [(action.kind, action.text) for action in trajectory.actions] == [("search", "Tarn")]


@pytest.mark.parametrize("author", ["question", "passage"])
def test_neither_a_question_nor_a_passage_can_write_a_control_token(author: str) -> None:
    hostile = f"Tarn{TOKENIZER.eos_token} is" if author == "passage" else "Tarn"
    asked = f"Who{TOKENIZER.eos_token}?" if author == "question" else "Who?"
    env = SearchEnv(
        Task(id="1", question=asked, golden_answers=("Tarn",)),
        DIALECTS["sleuth"],
        f"{TOKENIZER.eos_token}Question: {{question}}\n",
        Shelf(Passage(id="1", title="Tarn", text=hostile)),
    )
    episode = asyncio.run(rollout(diligent, context=400).episode(env, env.task, 0, 0))
    assert TOKENIZER.eos_token in (asked if author == "question" else hostile)
    controls = [s.author for s in episode.trajectory.segments if TOKENIZER.eos_token_id in s.tokens]
    assert controls == ["template"]
    assert episode.trajectory.tokens.count(TOKENIZER.eos_token_id) == 1
    assert TOKENIZER.decode(episode.trajectory.tokens) == episode.trajectory.text


def test_results_that_leave_no_room_for_a_turn_are_dropped_so_no_episode_exceeds_the_context() -> None:
    whole = groups(Shelf(TARN))[0].episodes[0].trajectory
    shown = [segment.text.startswith("\n<information>") for segment in whole.segments].index(True)
    asked = sum(len(segment.tokens) for segment in whole.segments[:shown])
    for context in range(asked + 1, len(whole.tokens)):
        trajectory = groups(Shelf(TARN), context=context)[0].episodes[0].trajectory
        assert len(trajectory.tokens) <= context
        assert trajectory.stop == "length"
        assert trajectory.searches == 1
        assert bool(trajectory.passages) is ("<information>" in trajectory.text)


def test_a_prompt_longer_than_the_context_is_one_clear_line() -> None:
    with pytest.raises(SleuthError, match=r"the prompt has \d+ tokens and the context holds 5: .* 'Question: Question"):
        groups(Shelf(TARN), context=5)


def test_streaming_adds_the_chunks_of_each_policy_segment_and_changes_nothing_else() -> None:
    async def parts(stream: bool) -> list[object]:
        env = SearchEnv(TASKS[0], DIALECTS["sleuth"], "Question: {question}\n", Shelf(TARN))
        engine, renderer = ScriptedEngine(TOKENIZER, diligent), Renderer(TOKENIZER)
        played = play(env, engine, renderer, context=400, temperature=1.0, key=(0,), stream=stream)
        return [part async for part in played]

    whole, streamed = asyncio.run(parts(False)), asyncio.run(parts(True))
    assert [part for part in streamed if not isinstance(part, Chunk)] == whole
    chunks = [part.text for part in streamed if isinstance(part, Chunk)]
    assert chunks == ["<think>hm</think><search> Tarn</search>", "<answer> Tarn</answer>"]


def test_an_action_follows_its_turn_and_precedes_its_passages() -> None:
    async def kinds() -> list[str]:
        env = SearchEnv(TASKS[0], DIALECTS["sleuth"], "Question: {question}\n", Shelf(TARN))
        engine, renderer = ScriptedEngine(TOKENIZER, diligent), Renderer(TOKENIZER)
        played = play(env, engine, renderer, context=400, temperature=1.0, key=(0,))
        return [
            part.author if isinstance(part, Segment) else part.kind if isinstance(part, Action) else part.stop
            async for part in played
            if not isinstance(part, Chunk)
        ]

    played = asyncio.run(kinds())
    assert played[-7:] == ["search", "env", "env", "env", "policy", "answer", "answered"]
    assert played.count("search") == 1


def test_chunks_concatenate_to_the_completion() -> None:
    chunks = [
        Chunk(tokens=(5,), logprobs=(-0.1,), text="a", policy_version=3),
        Chunk(tokens=(6, 7), logprobs=(-0.2, -0.3), text="bc", stop="eos", policy_version=3),
    ]
    assert collect_chunks(chunks) == Completion(
        tokens=(5, 6, 7), logprobs=(-0.1, -0.2, -0.3), text="abc", stop="eos", policy_version=3
    )
    with pytest.raises(ValueError, match="without a stop reason"):
        collect_chunks(chunks[:1])


def test_a_group_is_scored_while_others_are_still_played() -> None:
    async def overlapping() -> list[Group]:
        scored = asyncio.Event()

        class Patient(Shelf):
            async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
                await scored.wait()
                return await super().search(queries, k)

        async def reward(group: Group) -> list[Score]:
            scored.set()
            return [Score(value=float(group.task.id))] * len(group.episodes)

        def env(task: Task, key: EpisodeKey) -> Env:
            return SearchEnv(
                task, DIALECTS["sleuth"], "Question: {question}\n", Shelf(TARN) if task.id == "1" else Patient(TARN)
            )

        played = rollout(diligent, 400).groups(TASKS, env, samples=2, reward=reward)
        return await asyncio.wait_for(played, timeout=10)

    assert [[score.value for score in group.scores] for group in asyncio.run(overlapping())] == [
        [0.0, 0.0],
        [1.0, 1.0],
        [2.0, 2.0],
    ]
