"""The examples of `examples/own_code` do what their pages say."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tool_episodes import call
from verb import sleuth

from sleuth.answers.factory import reward_of
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.judges.factory import JudgePool
from sleuth.learn.batch import trajectory_row
from sleuth.learn.logprobs import row_logprobs
from sleuth.learn.losses import clipped_policy_loss
from sleuth.learn.models import load_model
from sleuth.recipe import load_recipe
from sleuth.render import Renderer, encode, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.types import NO_INFO, Group, Sampling, Task

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "own_code"
LENGTH = re.compile(r"How many (\w+) are (\d+) (\w+)\?")
UNITS = {"metres": "m", "kilometres": "km", "centimetres": "cm", "miles": "mi", "feet": "ft", "inches": "in"}
RECIPES = sorted(file for file in FOLDER.glob("*.toml") if file.stem not in ("notes", "tiny_calculator"))
"""All but those that begin with texts, which have tests of their own."""


Turn = Callable[[str, Sampling], str]


@pytest.fixture
def checkout(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has after the commands that the examples name."""
    for name in ("examples", "models", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(world, tmp_path / "runs" / "world")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "examples/own_code/sql_agent.py"], check=True)
    return tmp_path


def played(
    recipe: Path, question: str, golden: str, turns: list[str] | Turn, info: Mapping[str, Any] = NO_INFO
) -> Group:
    """A scored episode of the recipe's environment, in which the policy writes these turns, or what a function does."""
    stage = next(stage for stage in load_recipe(recipe).stage if stage.kind == "grpo")
    tokenizer = load_tokenizer("models/tiny-base")
    task = Task(id="q", question=question, golden_answers=(golden,), info=info)
    setting = stage.env.setting(tokenizer, [task])
    script = iter([] if callable(turns) else turns)

    def turn(text: str, sampling: Sampling) -> str:
        return turns(text, sampling) if callable(turns) else next(script)

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, turn),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=stage.context,
        temperature=1.0,
        key=(0,),
    )
    reward = reward_of(stage.reward, setting.dialect, tokenizer, JudgePool(Path("unused")))
    [group] = asyncio.run(rollout.groups([task], setting.env, samples=1, reward=reward))
    return group


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_each_example_is_checked_and_trains_a_step(recipe: Path, checkout: Path) -> None:
    checked = sleuth("check", "recipe", recipe.relative_to(ROOT))
    assert checked.exit_code == 0, checked.stderr
    stages = load_recipe(recipe.relative_to(ROOT)).stage
    small = ["stop_after=1", "prompts_per_step=2", "samples_per_prompt=4", "probe_prompts=2"]
    overrides = [f"grpo.{value}" for value in small]
    overrides += [f"{stage.name}.data.limit=2" for stage in stages if stage.kind == "evaluate"]
    arguments = [word for override in overrides for word in ("--set", override)]
    found = sleuth("train", recipe.relative_to(ROOT), *arguments, "--run", checkout / "run")
    assert found.exit_code == 0, found.stderr
    [row] = map(json.loads, (checkout / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["missing_fraction"] == 0
    assert json.loads((checkout / "run" / "manifest.json").read_text())["sources"]["grpo"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "recipe", "before", "figure", "most", "least"),
    [("sums_world", "tiny_calculator", "warm", "em", 0.2, 0.9), ("my_notes", "notes", "taught", "score", 0.8, 0.85)],
)
def test_a_tiny_model_learns_what_an_example_is_about(
    script: str, recipe: str, before: str, figure: str, most: float, least: float, checkout: Path
) -> None:
    subprocess.run([sys.executable, f"examples/own_code/{script}.py"], check=True)
    done = sleuth("train", f"examples/own_code/{recipe}.toml", "--run", checkout / "run")
    assert done.exit_code == 0, done.stderr
    found = [json.loads((checkout / f"run/eval/{name}.json").read_text()) for name in (before, "trained")]
    assert found[0][figure]["value"] < most
    assert found[1][figure]["value"] > least


def test_the_calculator_is_called_and_its_result_read(checkout: Path) -> None:
    turns = [
        '<tool_call>{"name": "calculator", "arguments": {"expression": "12 * (7 + 24)"}}</tool_call>',
        "<answer>372</answer>",
    ]
    group = played(Path("examples/own_code/calculator.toml"), "What is 12 * (7 + 24)?", "372", turns)
    trajectory = group.episodes[0].trajectory
    assert [action.result for action in trajectory.actions] == ["372", None]
    assert "\n<tool_response>372</tool_response>\n" in trajectory.text
    assert '"name": "calculator"' in trajectory.segments[0].text
    assert group.scores[0].value == 1.0


def test_a_transfer_in_the_bank_ends_the_episode_and_is_paid(checkout: Path) -> None:
    turns = [
        call("balance", owner="Ada"),
        call("transfer", payer="Ada", payee="Bo", amount=500),
        call("transfer", payer="Ada", payee="Bo", amount=10),
    ]
    row = json.loads((FOLDER / "transfers.jsonl").read_text().splitlines()[0])
    info = {"accounts": row["accounts"], "wanted": row["wanted"]}
    group = played(Path("examples/own_code/bank.toml"), row["question"], "", turns, info=info)
    trajectory = group.episodes[0].trajectory
    refused = "error: Bank.transfer: IntegrityError: CHECK constraint failed: balance >= 0"
    assert [action.result for action in trajectory.actions] == ["100", refused, "done"]
    assert trajectory.text.splitlines()[2] == "Move 10 from Ada to Bo. There are accounts of Ada, Bo."
    assert (trajectory.stop, group.scores[0].value) == ("answered", 1.0)


def test_the_bank_that_was_written_for_trl_is_played_as_it_is(checkout: Path) -> None:
    recipe = checkout / "bank.toml"
    theirs = str(ROOT / "examples/other_trainers/trl_bank.py")
    recipe.write_text(Path("examples/own_code/bank.toml").read_text().replace("my_bank:Bank", f"{theirs}:Bank"))
    row = json.loads((FOLDER / "transfers.jsonl").read_text().splitlines()[0])
    turns = [call("transfer", payer="Ada", payee="Bo", amount=10), "<answer>done</answer>"]
    group = played(recipe, row["question"], "", turns, info={"accounts": row["accounts"], "wanted": row["wanted"]})
    assert (group.episodes[0].trajectory.stop, group.scores[0].value) == ("answered", 1.0)


def notes_tasks() -> list[Task]:
    rows = list(runpy.run_path(str(FOLDER / "my_notes.py"))["rows"]("train"))[:4]
    return [
        Task(
            id=one["id"],
            question=one["question"],
            golden_answers=(*one["golden_answers"],),
            info={"need": one["need"], "snippets": one["snippets"]},
        )
        for one in rows
    ]


@pytest.mark.parametrize(("keeps", "value"), [(True, 1.0), (False, 0.0)])
def test_a_text_longer_than_the_context_is_read_in_parts_of_which_what_is_cited_stays(
    keeps: bool, value: float, checkout: Path
) -> None:
    recipe = Path("examples/own_code/notes.toml")
    tokenizer, task = load_tokenizer("models/tiny-reader"), notes_tasks()[0]
    subject = task.info["need"].partition(" of ")[2].rstrip(".")

    def cited(text: str, sampling: Sampling) -> str:
        found = re.findall(r"<snippet id=(\d+)>(.*?)</snippet>", text)
        states = [(at, one) for at, one in found if subject in one and task.golden_answers[0] in one]
        claims = [f"[{at}] {task.golden_answers[0]}" for at, _ in states if keeps or int(at) > 11]
        return f"<answer>{' '.join(claims) or 'The tool output does not answer this.'}</answer>"

    group = played(recipe, task.question, task.golden_answers[0], cited, info=task.info)
    trajectories = group.episodes[0].trajectories
    assert len(encode(tokenizer, " ".join(task.info["snippets"]))) > 1.4 * 320
    assert [one.stop for one in trajectories] == ["rewritten"] * 5 + ["answered"]
    assert group.scores[0].value == value


def test_what_was_sampled_under_a_folded_history_has_the_probabilities_that_the_learner_gives_it(
    checkout: Path,
) -> None:
    model, tokenizer = load_model("models/tiny-reader", dtype="float32", device="cpu")
    stage = load_recipe(Path("examples/own_code/notes.toml")).stage[2]
    setting = stage.env.setting(tokenizer, notes_tasks())
    rollout = Rollout(
        engine=LocalEngine(model, tokenizer, slots=8, context=320),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=320,
        temperature=1.0,
        key=(0,),
    )
    groups = asyncio.run(rollout.groups(notes_tasks(), setting.env, samples=2))
    rows = [trajectory_row(one, 1.0) for group in groups for episode in group.episodes for one in episode.trajectories]
    assert len(rows) == 8 * 6
    for row, logprobs in zip(rows, row_logprobs(model, rows, budget=4096), strict=True):
        assert row.sampler_logprobs is not None
        assert sum(row.trained) >= 1
        assert logprobs == pytest.approx(row.sampler_logprobs, abs=1e-4)


def test_a_length_is_converted_by_a_server_of_tools(checkout: Path) -> None:
    for row in map(json.loads, (FOLDER / "lengths.jsonl").read_text().splitlines()):
        length, unit, to = LENGTH.match(row["question"]).group(2, 3, 1)
        arguments = {"length": float(length), "unit": UNITS[unit], "to": UNITS[to]}
        turns = [
            f"<tool_call>{json.dumps({'name': 'convert', 'arguments': arguments})}</tool_call>",
            f"<answer>{row['golden_answers'][0]}</answer>",
        ]
        group = played(Path("examples/own_code/units.toml"), row["question"], row["golden_answers"][0], turns)
        result = group.episodes[0].trajectory.actions[0].result
        assert float(result) == float(row["golden_answers"][0])
        assert group.scores[0].value == 1.0


def test_the_agent_asks_the_sqlite_file_and_cannot_change_it(checkout: Path) -> None:
    def call(query: str) -> str:
        return f"<tool_call>{json.dumps({'name': 'sql', 'arguments': {'query': query}})}</tool_call>"

    turns = [
        call("SELECT capital FROM countries WHERE name = 'Ghana'"),
        call("DROP TABLE countries"),
        "<answer>Accra</answer>",
    ]
    group = played(Path("examples/own_code/sql_agent.toml"), "What is the capital of Ghana?", "Accra", turns)
    found, dropped, _ = group.episodes[0].trajectory.actions
    assert found.result == '[["Accra"]]'
    assert re.match(r"error: sql: OperationalError: attempt to write a readonly database", dropped.result)
    assert group.scores[0].value == 1.0


def test_the_guessing_game_tells_higher_and_lower_and_pays_early_guesses(checkout: Path) -> None:
    recipe = Path("examples/own_code/guessing.toml")
    turns = ["<answer>3</answer>", "hm", "<answer>9</answer>", "<answer>7</answer>"]
    group = played(recipe, "I think of a number.", "7", turns)
    replies = [one.text for one in group.episodes[0].trajectory.segments if one.author == "env"][1:]
    assert replies == ["\nhigher\n", "\nWrite one number.\n", "\nlower\n"]
    assert group.scores[0].value == 1 / 4
    assert played(recipe, "I think of a number.", "7", ["<answer>1</answer>"] * 4).scores[0].value == 0.0


def test_the_faded_loss_is_ours_near_the_sampling_policy(checkout: Path) -> None:
    import torch

    from sleuth.training.learning import function_loss_of

    stage = next(one for one in load_recipe("examples/own_code/faded.toml").stage if one.kind == "grpo")
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand((2, 4), generator=generator)
    near = logprobs + 1e-4 * torch.randn((2, 4), generator=generator)
    rest = (torch.tensor([[1.0], [-1.0]]), torch.full((2, 4), 1 / 8))
    ours = clipped_policy_loss(logprobs, near, *rest, low=0.2, high=0.2)
    faded = function_loss_of(stage.loss)(logprobs.requires_grad_(), near, *rest, low=0.2, high=0.2)
    assert faded.item() == pytest.approx(ours.item(), abs=1e-5)


def test_a_recipe_is_run_and_its_model_played_from_python(checkout: Path) -> None:
    import runpy

    names = runpy.run_path("examples/from_python.py")
    small = ["grpo.stop_after=1", "grpo.prompts_per_step=2", "grpo.samples_per_prompt=4", "grpo.probe_prompts=0"]
    small += ["base.data.limit=2", "trained.data.limit=2"]
    last = names["train"]("recipes/demo.toml", checkout / "run", *small)
    assert last == checkout / "run" / "checkpoints" / "step-000001"
    group = names["play"]("recipes/demo.toml", last, samples=2)
    assert [score.value is not None for score in group.scores] == [True, True]


def test_a_loop_of_ones_own_plays_trains_and_makes_its_questions_harder(checkout: Path) -> None:
    import runpy

    train = runpy.run_path("examples/own_loop.py")["train"]
    first = train("models/tiny-base", checkout / "runs" / "world", steps=2, prompts=2, samples=4)
    assert train("models/tiny-base", checkout / "runs" / "world", steps=2, prompts=2, samples=4) == first
    assert len(first) == 2


@pytest.mark.slow
def test_the_engine_the_prefix_tree_and_the_table_of_trajectories_work_as_the_page_says(
    checkout: Path, finished: Callable[..., Path]
) -> None:
    import torch

    pandas = pytest.importorskip("pandas")
    shutil.copytree(finished().parents[1], checkout / "runs" / "demo")
    page = (ROOT / "docs" / "how-to" / "from_python.md").read_text()
    engine, tree, table = re.findall(r"```python\n(.*?)```", page.partition("## Many answers")[2], re.DOTALL)
    names: dict[str, Any] = {"Path": Path}
    exec(engine, names)
    assert names["engine"].tokens_reused >= 31 * (len(names["prompt"]) - 1)
    exec(tree, names)
    model, batch = names["model"], names["collate"](names["rows"])
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    logits = model(batch.tokens).logits[:, :-1].log_softmax(-1)
    logprobs = torch.nn.functional.pad(logits.gather(2, batch.tokens[:, 1:, None]).squeeze(2), (1, 0))
    (-(logprobs * batch.advantages * batch.weights).sum()).backward()
    apart = [(one - parameter.grad).abs().max() for one, parameter in zip(ours, model.parameters(), strict=True)]
    assert max(apart).item() < 1e-5
    exec(table, names)
    frame = names["frame"]
    assert isinstance(frame, pandas.DataFrame)
    assert set(frame["searches"]) <= set(range(5))
