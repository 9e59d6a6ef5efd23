"""No Python and no command that a recipe or a run names runs without a line before it, or against --no-code."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result
from verb import sleuth

from sleuth.cli.app import Commands, app
from sleuth.engines.launch import Launch, ServerProcess
from sleuth.episodes.mcp_server import tool_server
from sleuth.own.functions import load_function
from sleuth.own.permission import BY_NO_CODE, CODE, CodePermission, CodeRefusedError

ROOT = Path(__file__).parents[2]
CANARY = """
from pathlib import Path

Path(__file__).with_name("ran").touch()

def score(episode, *, bonus=0.0):
    return bonus + sum(len(segment.tokens) for segment in episode.whole.segments) % 7

def tool(x: int) -> int:
    '''Doubles a number.

    Args:
        x: The number.
    '''
    return 2 * x

def loss(logprobs, old_logprobs, advantages, weights):
    return -((logprobs - old_logprobs).exp() * advantages * weights).sum()

class Env:
    def __init__(self, task):
        pass
"""
TOOLS = "stage.1.env={ kind = 'tools', prompt = 'plain', turn_tokens = 14, tools = [TOOL] }"
NAMED = {
    "a reward": "stage.1.reward=[{ kind = 'python', function = 'canary:score' }]",
    "a loss": "stage.1.loss={ function = 'canary:loss' }",
    "an environment": "stage.1.env={ kind = 'python', function = 'canary:Env' }",
    "a tool": TOOLS.replace("TOOL", "'canary:tool'"),
    "a tool in a table": TOOLS.replace("TOOL", "{ function = 'canary:tool' }"),
    "an MCP server": TOOLS.replace("TOOL", "{ mcp = 'PYTHON FOLDER/canary.py' }"),
    "an installed module": "stage.1.reward=[{ kind = 'python', function = 'installed_canary:score' }]",
    "a server of episodes": "stage.1.engine={ launch = 'vllm', command = 'FOLDER/canary.sh' }",
}
"""What a recipe can name that runs: an override that adds it to the recipe."""
PYTHON = [kind for kind in NAMED if kind not in ("an MCP server", "a server of episodes")]
DONE = {
    "an MCP server": "starts PYTHON FOLDER/canary.py",
    "an installed module": "imports installed_canary, an installed module",
    "a server of episodes": "starts FOLDER/canary.sh",
}
IMPORTS = "imports FOLDER/canary.py (module canary)"


class Stranger:
    """A folder with a recipe of somebody else, beside what writes the file `ran` when it runs."""

    def __init__(self, folder: Path, recipe: Path) -> None:
        self.folder, self.recipe = folder, recipe
        (folder / "canary.py").write_text(CANARY)
        (folder / "canary.sh").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
        (folder / "canary.sh").chmod(0o755)
        (folder / "site").mkdir()
        (folder / "site" / "installed_canary.py").write_text(
            CANARY.replace('with_name("ran")', 'parents[1].joinpath("ran")')
        )

    def named(self, kind: str) -> tuple[str, ...]:
        return ("--set", self.filled(NAMED[kind]))

    def act(self, kind: str) -> str:
        return self.filled(DONE.get(kind, IMPORTS))

    def filled(self, text: str) -> str:
        return text.replace("FOLDER", str(self.folder)).replace("PYTHON", sys.executable)

    @property
    def ran(self) -> bool:
        return (self.folder / "ran").exists()


@pytest.fixture
def stranger(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield Stranger(tmp_path, recipe_file)
    for name in ("canary", "installed_canary"):
        sys.modules.pop(name, None)


def only_refusal(done: Result, act: str) -> str:
    """The last key that asks for `act`, of which nothing but its refusal is printed."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") and line.endswith(f"{act}, which --no-code refuses") for line in lines), lines
    return lines[-1]


# -- a recipe ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAMED)
def test_with_no_code_training_is_refused_and_a_check_and_a_plan_leave_code_out(kind: str, stranger: Stranger) -> None:
    named = (stranger.recipe, *stranger.named(kind))
    line = only_refusal(sleuth("train", *named, "--no-code", "--run", stranger.folder / "run"), stranger.act(kind))
    assert re.search(r": stage\.1\.(reward|loss|env|engine)[.a-z0-9]* = ", line), line
    assert not (stranger.folder / "run").exists()
    checked = sleuth("check", "recipe", *named, "--no-code")
    assert (checked.exit_code, checked.stderr) == (0, ""), checked.output
    ok, warning = checked.stdout.splitlines()
    assert ok == "ok: 3 stages, 4 steps"
    assert warning == f"warning: --no-code: not checked, as the recipe {stranger.act(kind)}"
    as_json = sleuth("check", "recipe", *named, "--no-code", "--json")
    assert json.loads(as_json.stdout)["not_checked"] == [stranger.act(kind)]
    for card in ((), ("--no-code",), ("--card", "80GB")):
        planned = sleuth("plan", *named, *card, "--json")
        assert (planned.exit_code in (0, 1), planned.stderr) == (True, ""), planned.output
    assert not stranger.ran


def test_a_check_without_code_finds_what_is_wrong_elsewhere(stranger: Stranger) -> None:
    wrong = ("--set", "stage.2.data.questions=gone.jsonl", "--set", "stage.1.env.prompt=gone")
    done = sleuth("check", "recipe", stranger.recipe, *stranger.named("a reward"), *wrong, "--no-code")
    assert done.exit_code == 2
    assert [line.split(" = ")[0].rpartition(" ")[2] for line in done.stderr.splitlines()] == [
        "stage.1.env.prompt",
        "stage.2.data.questions",
    ]
    assert not stranger.ran


@pytest.mark.parametrize("kind", PYTHON)
def test_a_line_names_the_module_before_it_is_imported_once_for_a_command(kind: str, stranger: Stranger) -> None:
    broken = "\nraise ValueError('not now')\n"
    for file in (stranger.folder / "canary.py", stranger.folder / "site" / "installed_canary.py"):
        file.write_text(file.read_text() + broken)
    for verb in (("check", "recipe"), ("train", "--run", stranger.folder / "run")):
        (stranger.folder / "ran").unlink(missing_ok=True)
        done = sleuth(*verb, stranger.recipe, *stranger.named(kind))
        assert (done.exit_code, done.stdout) == (2, "")
        line, error = done.stderr.splitlines()
        assert line == f"code: {stranger.act(kind)}"
        assert "ValueError: not now" in error
        assert stranger.ran


def test_a_line_names_a_command_before_it_is_started(stranger: Stranger) -> None:
    done = sleuth("check", "recipe", stranger.recipe, *stranger.named("an MCP server"), "--json")
    assert (done.exit_code, done.stdout) == (2, "")
    line, error = done.stderr.splitlines()
    assert line == f"code: {stranger.act('an MCP server')}"
    assert "ended before it listed its tools" in error
    assert stranger.ran


def test_a_check_announces_no_server_that_only_training_starts(stranger: Stranger) -> None:
    done = sleuth("check", "recipe", stranger.recipe, *stranger.named("a server of episodes"))
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert not stranger.ran


def test_a_line_cannot_hide_itself_from_a_terminal(stranger: Stranger) -> None:
    hidden = TOOLS.replace("TOOL", r'{ mcp = "sh \u001b[2K\n\u202e x" }')
    done = sleuth("check", "recipe", stranger.recipe, "--set", hidden)
    assert done.stderr.splitlines()[0] == r"code: starts sh \x1b[2K\n\u202e x"


def test_the_arms_and_seeds_of_a_sweep_share_one_line(stranger: Stranger) -> None:
    file = stranger.folder / "arms.toml"
    function = "reward = [{ kind = 'python', function = 'canary:score' }]"
    own = stranger.recipe.read_text().replace('reward = [{ kind = "answer" }]', function)
    (stranger.folder / "own.toml").write_text(own)
    arms = "\n".join(f'[[arm]]\nname = "{name}"\nstages = ["own.toml:grpo", "own.toml:trained"]' for name in "ab")
    table = '[table]\nevaluation = "trained"\nfigures = ["em"]'
    file.write_text(f'name = "arms"\nmodel = "{ROOT}/models/tiny-base"\nseeds = [1, 2]\n{table}\n{arms}\n')
    without = sleuth("check", "sweep", file, "--no-code")
    assert without.exit_code == 0, without.output
    assert (
        without.stdout.splitlines()[1] == f"warning: --no-code: not checked, as the recipe {stranger.act('a reward')}"
    )
    only_refusal(sleuth("sweep", file, "--no-code", "--run", stranger.folder / "runs"), stranger.act("a reward"))
    assert not stranger.ran
    done = sleuth("check", "sweep", file, "--json")
    assert (done.exit_code, done.stderr) == (0, f"code: {stranger.act('a reward')}\n")
    assert json.loads(done.stdout)["seeds"] == 2


def test_a_model_is_checked_against_a_recipe_without_its_code(stranger: Stranger) -> None:
    text = stranger.recipe.read_text()
    table = re.search(r"^env = .*$", text, re.MULTILINE)
    assert table is not None
    stranger.recipe.write_text(text.replace(table[0], NAMED["a tool"].removeprefix("stage.1.")))
    model = ("check", "model", ROOT / "models" / "tiny-base", "--recipe", stranger.recipe)
    only_refusal(sleuth(*model, "--no-code"), stranger.act("a tool"))
    assert not stranger.ran
    assert sleuth(*model).stderr == f"code: {stranger.act('a tool')}\n"


def test_every_verb_that_takes_a_recipe_has_the_option() -> None:
    import typer.main

    group = typer.main.get_group(app)
    commands: dict[str, Any] = {name: group.commands[name] for name in Commands()}
    commands |= {f"check {name}": one for name, one in commands["check"].commands.items()}
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}
    recipes = {
        name
        for name, command in commands.items()
        for one in command.params
        if (one.param_type_name, one.metavar) == ("argument", "RECIPE")
    }
    assert {name for name, flags in options.items() if "--no-code" in flags} == recipes | {
        "learn",  # trains a recipe, and starts a teacher's server
        "sweep",
        "reproduce",
        "rescore",
        "check sweep",
        "check model",
    }
    asking = {"eval", "serve"}  # a model of an environment of one's own
    assert {name for name, flags in options.items() if "--allow-code" in flags} == {"replay", "compare", *asking}


# -- where code is imported and commands are started -------------------------------------------------------------------


def test_a_command_line_that_says_nothing_about_code_runs_none(stranger: Stranger) -> None:
    """Whoever adds a verb and forgets the option gets a refusal, and not a door."""
    launch = Launch(
        kind="vllm", program=[f"{stranger.folder}/canary.sh"], model="m", port=1, context=8, dtype="float32", requests=1
    )
    acts: list[Callable[[], object]] = [
        lambda: load_function(f"{stranger.folder}/canary.py:score"),
        lambda: load_function("installed_canary:score"),
        lambda: tool_server(f"sh {stranger.folder}/canary.sh"),
        ServerProcess("vllm-0", launch, stranger.folder / "log").start,
    ]
    with CODE.of_command_line():
        for act in acts:
            with pytest.raises(
                CodeRefusedError, match="this command runs no code that a recipe, a run or a checkpoint"
            ):
                act()
    assert not stranger.ran
    assert load_function(f"{stranger.folder}/canary.py:score").short_name == "score"


def test_what_was_imported_before_is_refused_too(stranger: Stranger) -> None:
    name = f"{stranger.folder}/canary.py:score"
    load_function(name)
    with CODE.of_command_line(), pytest.raises(CodeRefusedError):
        load_function(name)


def test_a_server_of_tools_at_a_url_is_no_command() -> None:
    with CODE.of_command_line(), pytest.raises(Exception, match="tool server failed"):
        tool_server("http://127.0.0.1:9/mcp")


def test_other_ranks_print_no_line(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    load_function(f"{stranger.folder}/canary.py:score")
    assert capfd.readouterr().err == ""


def test_ranks_on_other_machines_get_what_may_run_and_what_was_said() -> None:
    here = CodePermission(refusal=BY_NO_CODE, announced=["imports a.py (module a)"])
    there = CodePermission()
    there.take(pickle.loads(pickle.dumps(here)))
    assert there == here


# -- a run and a checkpoint --------------------------------------------------------------------------------------------


@pytest.fixture
def trained(
    run: Callable[..., Path],
    recipe_file: Path,
    once: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A run with a reward and a loss of its own, whose module has since been changed to one that writes `ran`."""
    short = ["stop_after=1", "prompts_per_step=2", "samples_per_prompt=4", "env.turn_tokens=12"]
    limits = ["stage.0.data.limit=1", "stage.2.data.limit=1"]
    own = [NAMED[kind] for kind in ("a reward", "a loss")]

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "canary.py").write_text(CANARY.replace("touch()", "exists()"))
        with chdir(folder):  # the run names the module by its path from here
            run(recipe_file, folder / "run", *own, *limits, *(f"stage.1.{key}" for key in short))
        (folder / "canary.py").write_text(CANARY)

    folder = tmp_path / "trained"
    shutil.copytree(once("run-that-names-code", make), folder)
    monkeypatch.chdir(folder)
    sys.modules.pop("canary", None)
    return folder / "run"


def test_no_verb_imports_the_code_of_a_run(
    trained: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, trained.with_name("other"))
    last = max((trained / "checkpoints").glob("step-*"))
    reward, out = tmp_path / "new.toml", tmp_path / "out.json"
    reward.write_text('[[reward]]\nkind = "answer"\n')
    asked = ("--questions", world / "qa_test.jsonl", "--index", world / "index", "--limit", 2)
    monkeypatch.setattr("sleuth.cli.serve.run", lambda *arguments: None)
    for command in (
        ("eval", last, *asked, "--out", out),
        ("serve", last, "--index", world / "index", "--port", 0),
        ("report", trained),
        ("compare", trained, trained.with_name("other")),
        ("rescore", trained, "--reward", reward),
        ("probe", last, *asked),
        ("check", "protocols", last, last),
    ):
        done = sleuth(*command)
        assert done.exit_code == 0, done.output
        assert "code:" not in done.stderr
        assert not trained.with_name("ran").exists(), command


def test_rescore_refuses_a_family_that_a_run_names(trained: Path, tmp_path: Path) -> None:
    recipe, reward = trained / "recipe.toml", tmp_path / "new.toml"
    recipe.write_text(recipe.read_text().replace("families = []", 'families = ["canary:FAMILY"]'))
    (trained / "chain.jsonl").unlink()
    reward.write_text('[[reward]]\nkind = "answer"\n')
    done = sleuth("rescore", trained, "--reward", reward)
    assert done.exit_code == 2
    assert "imports canary.py (module canary), and this command imports nothing that a run names" in done.stderr
    assert "code:" not in done.stderr
    assert not trained.with_name("ran").exists()


def test_replay_imports_the_code_of_a_run_only_where_that_is_allowed(trained: Path) -> None:
    ran = trained.with_name("ran")
    done = sleuth("replay", trained, 1)
    assert (done.exit_code, done.stdout) == (2, "")
    act = "imports canary.py (module canary)"
    assert done.stderr == f"error: {act}, and what a run names is imported only with --allow-code\n"
    assert not ran.exists()
    done = sleuth("replay", trained, 1, "--allow-code", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines().count(f"code: {act}") == 1
    assert json.loads(done.stdout)["scores_changed"] == 0


def test_continuing_a_run_prints_the_line_of_a_run_that_begins(trained: Path) -> None:
    done = sleuth("train", trained / "recipe.toml", "--run", trained, "--no-code")
    only_refusal(done, "imports canary.py (module canary)")
    assert not trained.with_name("ran").exists()
    done = sleuth("train", trained / "recipe.toml", "--run", trained)
    assert done.stderr.splitlines()[0] == "code: imports canary.py (module canary)"
    assert trained.with_name("ran").exists()


def test_a_reward_to_try_on_a_run_is_announced_and_refused_like_that_of_a_recipe(
    trained: Path, stranger: Stranger
) -> None:
    reward = stranger.folder / "new.toml"
    reward.write_text('[[reward]]\nkind = "python"\nfunction = "trial:score"\n')
    (stranger.folder / "trial.py").write_text(CANARY)
    act = f"imports {reward.with_name('trial.py')} (module trial)"
    only_refusal(sleuth("rescore", trained, "--reward", reward, "--no-code"), act)
    assert not stranger.ran
    done = sleuth("rescore", trained, "--reward", reward, "--json")
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if line.startswith("code:")] == [f"code: {act}"]
    assert (json.loads(done.stdout)["stages"][0]["episodes"], stranger.ran) == (2 * 4, True)
    assert not trained.with_name("ran").exists()
    sys.modules.pop("trial", None)
