"""GRPO runs with a reward, a loss, an environment or tools of a user: what they record, and when they do not go on."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused
from run_files import evaluation, groups, manifest, rows
from verb import sleuth

from sleuth.episodes.function import code_differences
from sleuth.episodes.protocol import OwnCode, ProtocolCard
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.types import Sampling, SleuthError

Run = Callable[..., Path]

REWARDS = """
from sleuth.types import Episode, Score

def brevity(episode: Episode, *, limit: int = 40) -> float:
    print("a print of the user")
    tokens = [token for segment in episode.whole.segments if segment.author == "policy" for token in segment.tokens]
    return 1 - len(tokens) / limit

def named(episode: Episode) -> Score:
    ours = ("stage", "step", "em", "correct", "learning_rate", "reward_mean")
    return Score(value=brevity(episode), parts=dict.fromkeys(ours, 99), note="a note of the user")
"""
ENV = """
import asyncio, random
from sleuth.types import Action, Piece, Reply

class Longer:
    def __init__(self, task, *, turns=2):
        self.task, self.left = task, turns

    async def open(self):
        return Reply(pieces=(Piece(text=self.task.question + " Write.\\n"),), max_tokens=6, stops=("</answer>",))

    async def reply(self, text, stop):
        await asyncio.sleep(random.random() / 50)  # the order in which replies arrive changes no byte
        self.left -= 1
        action = Action(kind="answer", text=text)
        if not self.left:
            return Reply(action=action, done="answered")
        return Reply(pieces=(Piece(text="\\nmore\\n"),), action=action, max_tokens=6, stops=("</answer>",))
"""
LOSS = """
def plain(logprobs, old_logprobs, advantages, weights, *, factor=1.0):
    return -factor * ((logprobs - old_logprobs).exp() * advantages * weights).sum()
"""
PYTHON_REWARD = "stage.1.reward=[{ kind = 'python', function = 'own_rewards:brevity', parameters = { limit = 30 } }]"
PYTHON_ENV = "stage.1.env={ kind = 'python', function = 'own_env:Longer', parameters = { turns = 3 } }"
OWN_LOSS = "stage.1.loss={ function = 'own_losses:plain', parameters = { factor = 2.0 } }"
SHORT = "stage.1.stop_after=2"
BRIEF = {
    "limit = 4": "limit = 2",
    "prompts_per_step = 4": "prompts_per_step = 2",
    "samples_per_prompt = 8": "samples_per_prompt = 4",
    "turn_tokens = 14": "turn_tokens = 12",
}


def write_own_recipe(folder: Path, text: str) -> Path:
    """A recipe beside the user's code, with fewer and shorter episodes: it is all the same what they say."""
    for name, code in {"own_rewards": REWARDS, "own_env": ENV, "own_losses": LOSS}.items():
        (folder / f"{name}.py").write_text(code)
    for was, now in BRIEF.items():
        assert was in text
        text = text.replace(was, now)
    file = folder / "own.toml"
    file.write_text(text)
    return file


@pytest.fixture
def recipe(recipe_file, tmp_path) -> Path:
    return write_own_recipe(tmp_path, recipe_file.read_text())


@pytest.fixture
def ended(run, recipe_file, once) -> Run:
    """`ended(*overrides)`: the last checkpoint of a run with the user's code as it is, made once for all tests."""

    def last(*overrides: str) -> Path:
        def make(folder: Path) -> None:
            folder.mkdir()
            run(write_own_recipe(folder, recipe_file.read_text()), folder / "run", *overrides)

        name = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:12]
        return max((once(f"own-{name}", make) / "run/checkpoints").glob("step-*"))

    return last


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def card_of(checkpoint: Path) -> ProtocolCard:
    card = ProtocolCard.read(checkpoint)
    assert card is not None
    return card


def test_a_reward_of_the_user_is_paid_measured_and_recorded(ended):
    last = ended(PYTHON_REWARD, SHORT)
    folder = last.parents[1]
    first = rows(folder)[0]
    assert first["reward_mean"] == pytest.approx(first["score_brevity"])
    [group, *_] = groups(folder, 1)
    for episode, score in zip(group.episodes, group.scores, strict=True):
        written = sum(len(one.tokens) for one in episode.whole.segments if one.author == "policy")
        assert score.value == pytest.approx(1 - written / 30)
    assert [evaluation(folder, name)["score_brevity"]["n"] for name in ("base", "trained")] == [2, 2]
    [part], sources = card_of(last).reward.parts, {"own_rewards.py": digest(REWARDS)}
    assert (part.kind, part.scorer, part.sources) == ("python", "own_rewards:brevity, limit=30", sources)
    assert manifest(folder)["sources"] == {"grpo": sources}


@pytest.mark.parametrize(
    ("override", "file"),
    [
        (PYTHON_REWARD, "own_rewards.py"),
        pytest.param(PYTHON_ENV, "own_env.py", marks=pytest.mark.slow),
        pytest.param(OWN_LOSS, "own_losses.py", marks=pytest.mark.slow),
    ],
)
def test_changed_code_is_refused_on_resume_unless_it_is_accepted(run, recipe, tmp_path, override, file):
    run(recipe, tmp_path / "run", override, SHORT)
    before = digest((tmp_path / file).read_text())[:12]
    with (tmp_path / file).open("a") as source:
        source.write("\n# another byte\n")
    now = digest((tmp_path / file).read_text())[:12]
    with pytest.raises(SleuthError) as caught:
        run(recipe, tmp_path / "run", override)
    if file == "own_rewards.py":
        assert f"{file} ({before}), the recipe {file} ({now})" in str(caught.value)
    else:
        assert f"{file} changed after it was saved; start a new run, or continue" in str(caught.value)
    arguments = ["train", recipe, "--set", override, "--run", tmp_path / "run", "--accept-reward"]
    wrong = sleuth(*arguments, "nonsense")
    assert wrong.exit_code == 2
    assert [line.split()[0] for line in wrong.stderr.splitlines()] == ["code:", "error:"]
    accepted = sleuth(*arguments, str(caught.value).split()[-1])
    assert accepted.exit_code == 0, accepted.stderr
    assert len(rows(tmp_path / "run")) == 4


def test_episodes_are_played_in_the_users_environment(ended):
    last = ended(PYTHON_ENV, SHORT)
    trajectory = groups(last.parents[1], 1)[0].episodes[0].trajectory
    assert [segment.author for segment in trajectory.segments] == ["env", "policy"] * 3
    assert (trajectory.segments[2].text, trajectory.stop, len(trajectory.actions)) == ("\nmore\n", "answered", 3)
    assert card_of(last).env.model_dump() == {
        "functions": ("own_env:Longer",),
        "parameters": {"turns": 3},
        "sources": {"own_env.py": digest(ENV)},
    }
    record = evaluation(last.parents[1], "trained")["records"][0]
    assert [action["kind"] for action in record["actions"]] == ["answer"] * 3


def test_a_card_never_makes_a_command_import_what_it_names(run, recipe, tmp_path, world):
    with_env = run(recipe, tmp_path / "env", PYTHON_ENV, SHORT)
    with_reward = run(recipe, tmp_path / "reward", PYTHON_REWARD, OWN_LOSS, SHORT)
    for name in ("own_env", "own_rewards", "own_losses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    questions = tmp_path / "few.jsonl"
    questions.write_text("".join((world / "qa_test.jsonl").read_text().splitlines(keepends=True)[:2]))
    found = sleuth("eval", with_reward, "--questions", questions, "--index", world / "index", "--json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["em"]["n"] == 2
    for verb in (["eval", with_env, "--questions", questions], ["serve", with_env, "--port", "0"]):
        result = sleuth(*verb)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "was trained in own_env:Longer, code of your own that its card does not start" in result.stderr


def test_a_run_whose_reward_always_fails_ends_with_the_users_line_and_keeps_what_it_has(run, recipe, tmp_path):
    text = "calls = []\ndef late(episode):\n    calls.append(1)\n    return 1 / (len(calls) < 20)\n"
    (tmp_path / "own_rewards.py").write_text(text)
    override = "stage.1.reward=[{ kind = 'python', function = 'own_rewards:late' }]"
    with pytest.raises(SleuthError) as caught:
        run(recipe, tmp_path / "run", override, "stage.1.save_every=1")
    assert "scores are missing (" in str(caught.value)
    assert "own_rewards.py:4: late: ZeroDivisionError: division by zero)" in str(caught.value)
    done = rows(tmp_path / "run")
    assert done
    assert all(row["missing_fraction"] <= 0.5 for row in done)
    assert len(list((tmp_path / "run/checkpoints").iterdir())) >= 1


@pytest.mark.parametrize(
    ("file", "text", "override", "reason"),
    [
        ("own_rewards.py", "def brevity(episode, limit): return 'x'", PYTHON_REWARD,
         "own_rewards.py:1: brevity: returned 'x'; exp"),
        ("own_env.py", "class Longer:\n    def __init__(self, task, turns): 1 / 0", PYTHON_ENV,
         "own_env.py:2: Longer: ZeroDivisionError: division by zero"),
        ("own_env.py", ENV.replace("max_tokens=6", "max_tokens=0", 1), PYTHON_ENV.replace("stage.1", "stage.0"),
         "own_env.py:5: Longer: open returned a reply that allows the policy no token: set max_tokens, or done"),
        ("own_losses.py", "def plain(logprobs, old_logprobs, advantages, weights): return 3", OWN_LOSS,
         "own_losses.py:1: plain: has no parameter factor; it has none"),
    ],
)  # fmt: skip
def test_a_check_calls_each_once_and_names_the_users_line(recipe, tmp_path, file, text, override, reason):
    (tmp_path / file).write_text(text)
    assert reason in refused(recipe, override)


TOOLS = """
import pathlib
ANSWERS = pathlib.Path(__file__).with_name("answers.txt")

def now(what: str) -> str:
    \"\"\"Tells the time.

    Args:
        what: Of what.
    \"\"\"
    number = len(ANSWERS.read_text()) if ANSWERS.exists() else 0
    ANSWERS.write_text("x" * (number + 1))
    return f"it is {number}"
"""


class CallingEngine(ScriptedEngine):
    """In its first two turns every episode makes the same call of the tool `now`; then it answers."""

    def __init__(self, tokenizer) -> None:
        super().__init__(tokenizer, self.turn)

    def turn(self, text: str, sampling: Sampling) -> str:
        call = {"name": "now", "arguments": {"what": "all"}}
        return f"<tool_call>{json.dumps(call)}</tool_call>" if sampling.key[-1] < 2 else "<answer>late</answer>"

    def publish(self, version: int) -> None: ...

    def sleep(self) -> None: ...

    def figures(self) -> dict[str, float]:
        return {}


def test_a_resumed_run_uses_the_results_that_tools_gave_before(run, recipe, tmp_path, monkeypatch):
    """The tool answers otherwise at each call. The run is killed after step 2, and its last checkpoint is of step 1."""
    monkeypatch.setattr(
        "sleuth.training.grpo.training_engine", lambda stage, context, model, tokenizer: (CallingEngine(tokenizer), [])
    )
    (tmp_path / "own_tools.py").write_text(TOOLS)
    (tmp_path / "prompt.txt").write_text("{tools}\n{question}\n")
    env = f"kind = 'tools', tools = ['own_tools:now'], prompt = '{tmp_path}/prompt.txt', turn_tokens = 128"
    overrides = [f"stage.1.env={{ {env} }}", PYTHON_REWARD, "stage.1.save_every=1", "stage.1.context=600"]
    overrides += ["stage.1.loss.old_logprobs=learner", "stage.1.samples_per_prompt=8", SHORT]
    run(recipe, tmp_path / "run", *overrides)
    before = groups(tmp_path / "run", 2)
    results = [action.result for group in before for one in group.episodes for action in one.trajectory.actions[:2]]
    assert len(set(results)) == len(results) == 2 * 2 * 8  # every call is made, whatever was called before
    assert rows(tmp_path / "run")[1]["calls_mean"] == 2.0
    reported = sleuth("report", tmp_path / "run")
    assert reported.exit_code == 0, reported.stderr
    made = len((tmp_path / "answers.txt").read_text())
    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    run(recipe, tmp_path / "run", *overrides)
    assert groups(tmp_path / "run", 2) == before
    assert len((tmp_path / "answers.txt").read_text()) == made
    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    (tmp_path / "own_tools.py").write_text(f"{TOOLS}\n# changed\n")
    with pytest.raises(SleuthError, match=r"own_tools\.py changed") as refusal:
        run(recipe, tmp_path / "run", *overrides)
    settings = [word for override in overrides for word in ("--set", override)]
    accepted = ("--accept-reward", str(refusal.value).split()[-1])
    went_on = sleuth("train", recipe, *settings, "--run", tmp_path / "run", *accepted)
    assert went_on.exit_code == 0, went_on.stderr
    assert len((tmp_path / "answers.txt").read_text()) > made  # the results were those of the old tool


def test_changes_of_files_functions_and_parameters_are_each_named():
    before = {"env": OwnCode(functions=("a:E",), parameters={"n": 1}, sources={"a.py": "1"})}
    now = {"env": OwnCode(functions=("a:F",), parameters={"n": 2}, sources={"a.py": "2", "b.py": "3"})}
    assert code_differences(before, now) == ["a.py", "b.py", "the functions of env", "the parameters of env"]
    assert code_differences(now, now) == []


def test_recorded_episodes_are_scored_and_replayed_with_functions(ended, recipe, tmp_path):
    shutil.copytree(ended(PYTHON_REWARD, OWN_LOSS, SHORT).parents[1], tmp_path / "run")
    new = tmp_path / "new.toml"
    new.write_text('[[reward]]\nkind = "python"\nfunction = "own_rewards:brevity"\nparameters = { limit = 60 }\n')
    rescored = sleuth("rescore", tmp_path / "run", "--reward", new, "--json")
    assert rescored.exit_code == 0, rescored.stderr
    [stage] = json.loads(rescored.stdout)["stages"]
    assert (stage["within"]["value"], stage["after"]["missing"]) == (1.0, 0)
    assert stage["after"]["mean"] > stage["before"]["mean"]
    replayed = sleuth("replay", tmp_path / "run", "2", "--allow-code", "--json")
    assert replayed.exit_code == 0, replayed.stderr
    found = json.loads(replayed.stdout)
    assert found["loss"] == pytest.approx(found["recorded_loss"], rel=1e-6)
    assert (found["scores_changed"], found["cosine"]) == (0, pytest.approx(1.0))
