"""What another trainer played becomes an episode of ours; what it cannot play is refused before it starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import TEMPLATE, load_stage, recorded_groups, write_model, write_recipe

from sleuth.trainers.search_stage import PlayedTurn, SearchStage, load_search_stage
from sleuth.types import Action, Episode, Segment, SleuthError


@pytest.fixture(scope="module")
def recipe(world: Path, once: Callable[..., Path]) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        write_model(folder / "model", TEMPLATE)
        write_recipe(folder / "chat.toml", folder / "model", world)

    return once("search-stage", make) / "chat.toml"


async def read_again(stage: SearchStage, episode: Episode) -> Episode:
    """The episode from its tokens alone, its searches made again."""
    before: tuple[int, ...] = ()
    turns: list[PlayedTurn] = []
    for segment in episode.trajectory.segments:
        if segment.author == "policy":
            policy, stop = stage.policy_segment(segment.tokens, before)
            turns.append(PlayedTurn(policy=policy, stop=stop))
        elif turns:
            tokens = (*(turns[-1].results.tokens if turns[-1].results else ()), *segment.tokens)
            results = Segment(author="env", tokens=tokens, text=stage.tokenizer.decode(tokens))
            turns[-1] = PlayedTurn(policy=turns[-1].policy, stop="eos", results=results)
        before += segment.tokens
    searches = [action for action in episode.trajectory.actions if action.kind == "search"]
    for at, (turn, action) in enumerate(zip(turns, searches, strict=False)):
        if turn.results is not None or episode.trajectory.stop != "turns":
            call = await stage.call({stage.tool.argument: action.text})
            turns[at] = PlayedTurn(policy=turn.policy, stop=turn.stop, calls=(call,), results=turn.results)
    length = sum(len(segment.tokens) for segment in episode.trajectory.segments[:3])
    beginning = episode.trajectory.tokens[:length]
    prompt = Segment(author="template", tokens=beginning, text=stage.tokenizer.decode(beginning))
    return await stage.episode(episode.task, prompt, turns)


def test_episodes_read_from_their_tokens_are_the_same_and_score_the_same(recipe: Path) -> None:
    stage = load_stage(recipe, "grpo.data.limit=10")
    groups = recorded_groups(stage)
    episodes = [episode for group in groups for episode in group.episodes]
    read = [asyncio.run(read_again(stage, episode)) for episode in episodes]
    assert {episode.trajectory.stop for episode in read} == {"answered", "turns", "length", "failed"}
    for one, other in zip(episodes, read, strict=True):
        assert other.trajectory.tokens == one.trajectory.tokens
        assert other.trajectory.text == one.trajectory.text
        assert (other.trajectory.actions, other.trajectory.stop) == (one.trajectory.actions, one.trajectory.stop)
    scores = asyncio.run(stage.scores(read))
    assert [score.value for score in scores] == [score.value for group in groups for score in group.scores]


def test_the_first_message_holds_prompt_and_question(recipe: Path, tmp_path: Path) -> None:
    stage = load_stage(recipe, "grpo.data.limit=1")
    [task] = stage.tasks.values()
    [message] = stage.messages(task)
    assert message["role"] == "user"
    assert message["content"].startswith("Answer the question with the help of the search tool.")
    assert task.question in message["content"]
    (tmp_path / "rules.txt").write_text("Look it up.")
    roles = [f"grpo.env.prompt={tmp_path}/rules.txt", "grpo.env.prompt_role=system"]
    system, user = load_stage(recipe, "grpo.data.limit=1", *roles).messages(task)
    assert system == {"role": "system", "content": "Look it up."}
    assert user == {"role": "user", "content": task.question}


def test_a_passage_is_cut_where_ours_cuts_it(recipe: Path) -> None:
    stage = load_stage(recipe, "grpo.data.limit=1", "grpo.env.passage_tokens=5")
    [task] = stage.tasks.values()
    call = asyncio.run(stage.call({"query": task.question}))
    assert [len(stage.tokenizer.encode(line)) for line in call.text.splitlines()] == [5, 5, 5]


@pytest.mark.parametrize("arguments", [{}, {"query": 3}, {"query": " "}, {"question": "Who?"}])
def test_a_call_that_cannot_be_read_gets_the_hint(recipe: Path, arguments: dict[str, object]) -> None:
    stage = load_stage(recipe, "grpo.data.limit=1")
    call = asyncio.run(stage.call(arguments))
    assert (call.queries, call.text) == ((), stage.setting.dialect.hint)
    turn = PlayedTurn(policy=Segment(author="policy", tokens=(1,), text=" x "), stop="eos", calls=(call,))
    assert turn.action == Action(kind="invalid", text="x")


def test_what_another_trainer_cannot_play_is_refused_in_a_line_each(recipe: Path, tmp_path: Path) -> None:
    overrides = ["grpo.env.dialect=sleuth", 'grpo.credit={ kind = "search_gain", bonus = 1.0 }']
    with pytest.raises(SleuthError) as refused:
        load_search_stage(recipe, overrides, verdicts=tmp_path / "verdicts.sqlite")
    assert refused.value.args == (
        'stage.0.env.dialect = "sleuth": another trainer calls tools through the chat template; set dialect = "chat" '
        'and prompt_role = "user"',
        "stage.0.credit: another trainer takes one number for an episode, and no credit for single tokens; remove "
        "[stage.credit]",
    )


def test_an_environment_that_does_not_search_is_refused(recipe: Path, tmp_path: Path) -> None:
    env = 'grpo.env={ kind = "python", function = "my_env:Env" }'
    with pytest.raises(SleuthError, match=r'stage.0.env.kind = "python": another trainer can only play kind = "search'):
        load_search_stage(recipe, [env], verdicts=tmp_path / "verdicts.sqlite")


def test_a_recipe_without_reinforcement_learning_is_refused(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval.toml"
    data = recipe.read_text().partition("data = ")[2].partition("\n")[0]
    env = '{ kind = "search", dialect = "sleuth", prompt = "plain", retriever = "empty" }'
    stage = f'kind = "evaluate"\nname = "base"\ncontext = 400\ndata = {data}\nenv = {env}\n'
    file.write_text(f'name = "eval"\nmodel = "m"\n[[stage]]\n{stage}')
    with pytest.raises(SleuthError, match=r'no stage has kind = "grpo"'):
        load_search_stage(file, verdicts=tmp_path / "verdicts.sqlite")


def test_a_stage_is_loaded_inside_a_running_event_loop(recipe: Path, tmp_path: Path) -> None:
    async def load() -> None:
        load_search_stage(recipe, verdicts=tmp_path / "verdicts.sqlite")

    asyncio.run(load())


def test_a_judge_sits_its_exam_before_another_trainer_is_paid_by_it(recipe: Path, tmp_path: Path) -> None:
    reward = "stage.0.reward=[{kind='citation', content='none', judge={kind='lexical', least_accuracy=0.9}}]"

    async def load() -> None:
        load_search_stage(recipe, [reward], verdicts=tmp_path / "paid" / "verdicts.sqlite")

    asyncio.run(load())
    [card] = json.loads((tmp_path / "paid" / "judges.json").read_text())
    assert card["skills"]["claims"]["accuracy"]["value"] == 1.0


def test_questions_that_the_recipe_skips_are_not_given_to_another_trainer(recipe: Path, tmp_path: Path) -> None:
    first = recipe.read_text().partition('questions = "')[2].partition('"')[0]
    row = json.loads(Path(first).read_text().partition("\n")[0])
    rows = [row, row | {"id": "long", "question": row["question"] * 500}]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    long = f"grpo.data.questions={file}"
    with pytest.raises(SleuthError, match=r"row 2 \('long'\) of 2: a prompt of"):
        load_stage(recipe, long)
    assert list(load_stage(recipe, long, "grpo.data.too_long=skip").tasks) == [str(row["id"])]
