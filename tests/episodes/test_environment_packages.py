"""200 episodes in environments of Gymnasium and OpenEnv have the rewards of the package's own loop."""

from __future__ import annotations

import asyncio
import importlib
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import KEEPS, chat_tokenizer

from sleuth.answers.tables import EnvironmentReward
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.episodes.tables import FunctionEnvRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.types import Episode, Sampling, Task

EPISODES, TURNS = 200, 12
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_code" / "frozen_lake.py"
GYMNASIUM = '''
import gymnasium
from gymnasium.spaces import Text

class Guess(gymnasium.Env):
    """A number from 0 to 9, drawn by the seed."""

    observation_space, action_space = Text(80), Text(80)

    def __init__(self, most: int = 10) -> None:
        self.most = most

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(self.most))
        return f"Guess a number below {self.most}.", {}

    def step(self, action):
        if not action.isdigit():
            return "That is no number.", -0.25, False, False, {}
        right = int(action) == self.number
        word = "right" if right else "higher" if int(action) < self.number else "lower"
        return word, 1.0 if right else -0.1, right, False, {}

def guess(task, *, most=10):
    return gymnasium.wrappers.TimeLimit(Guess(most), 5)

def guess_as_text(task):
    return guess(task), lambda text: text.removesuffix("</answer>"), str
'''
OPENENV = '''
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server import Action, Environment, Observation, State

class Word(Action):
    word: str

class Heard(Observation):
    text: str

class Echo(Environment):
    """Pays the length of a word, up to the number of the row; "bye" ends it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, most=0, **others):
        self.most, self.turn = most, 0
        return Heard(text=f"Words of at most {most} letters pay.", done=False)

    def step(self, action, timeout_s=None, **others):
        self.turn += 1
        paid = float(len(action.word)) if len(action.word) <= self.most else None
        return Heard(text=f"{self.turn}: {action.word}", reward=paid, done=action.word == "bye")

    @property
    def state(self):
        return State(step_count=self.turn)

class EchoClient(EnvClient[Word, Heard, State]):
    def _step_payload(self, action):
        return {"word": action.word}

    def _parse_result(self, payload):
        observation = Heard(text=payload["observation"]["text"])
        return StepResult(observation=observation, reward=payload.get("reward"), done=payload["done"])

    def _parse_state(self, payload):
        return State(**payload)

def echo(task, *, url):
    return EchoClient(base_url=url).sync(), lambda text: Word(word=text), lambda heard: heard.text
'''


def module(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a user's, which the recipe finds in the current folder."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def actions_of(words: Sequence[str]) -> list[list[str]]:
    """What the policy writes in each episode."""
    rng = random.Random(0)
    return [[rng.choice(words) for _ in range(TURNS)] for _ in range(EPISODES)]


def played(tasks: Sequence[Task], scripts: Sequence[Sequence[str]], **keys: Any) -> list[Episode]:
    """One episode of each task, in which the policy writes a script; it ends when the context is full."""
    tokenizer = chat_tokenizer(KEEPS)
    setting = FunctionEnvRecipe.model_validate({"kind": "python", **keys}).setting(tokenizer, tasks)
    end = "<|im_end|>" if keys.get("prompt_role") == "user" else "</answer>"

    def answer(text: str, sampling: Sampling) -> str:
        return scripts[sampling.key[-3]][sampling.key[-1]] + end

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, answer),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=4000,
        temperature=1.0,
        key=(0,),
    )
    groups = asyncio.run(rollout.groups(tasks, setting.env, samples=1))
    return [episode for group in groups for episode in group.episodes]


def gymnasium_loop(make: Callable[[Task], Any], tasks: Sequence[Task], scripts: Sequence[Sequence[str]]) -> list[Any]:
    """The sums of rewards, the observations and the ends in the package's own loop."""
    ended = []
    for task, script in zip(tasks, scripts, strict=True):
        env, observed, total, stop = make(task), [], 0.0, ""
        env.reset(seed=task.info["seed"])
        for action in script:
            observation, reward, terminated, truncated, _ = env.step(action)
            observed.append(observation)
            total += reward
            if stop := "answered" if terminated else "turns" if truncated else "":
                break
        ended.append((total, observed, stop))
    return ended


def ends_of(episodes: Sequence[Episode]) -> list[Any]:
    return [
        (EnvironmentReward().score(one).value, [act.result for act in one.trajectory.actions], one.trajectory.stop)
        for one in episodes
    ]


@pytest.mark.parametrize("role", ["raw", "user"])
def test_200_episodes_of_a_text_environment_of_gymnasium(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium", reason="`make agents` makes an environment with Gymnasium")
    theirs = module(tmp_path, "gym_guess", GYMNASIUM, monkeypatch)
    tasks = [Task(id=str(at), question="", info={"seed": at}) for at in range(EPISODES)]
    scripts = actions_of([*map(str, range(10)), "none"])
    made = {"raw": "guess_as_text", "user": "guess"}[role]
    episodes = played(tasks, scripts, function=f"gym_guess.py:{made}", prompt_role=role)
    expected = gymnasium_loop(theirs.guess, tasks, scripts)
    assert ends_of(episodes) == [(pytest.approx(total), seen, stop) for total, seen, stop in expected]
    assert {stop for _, _, stop in expected} == {"answered", "turns"}
    text = episodes[0].trajectory.text
    assert ("<|im_start|>user\nGuess a number below 10.<|im_end|>" in text) == (role == "user")


def test_200_episodes_of_an_environment_of_gymnasium_with_other_actions_and_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium", reason="`make agents` makes an environment with Gymnasium")
    theirs = module(tmp_path, "frozen_lake", EXAMPLE.read_text(), monkeypatch)
    tasks = [Task(id=str(at), question="", info={"seed": at}) for at in range(EPISODES)]
    scripts = actions_of(["down", "right", "right", "left"])
    unread = [["none", *script] for script in scripts]  # "none" is no action, and no step is made
    episodes = played(tasks, unread, function="frozen_lake.py:lake", prompt_role="user")
    expected = gymnasium_loop(
        lambda task: theirs.lake(task)[0], tasks, [[*map(theirs.ACTIONS.index, one)] for one in scripts]
    )
    no_action = "error: 'none' is not in list"
    shown = [(total, [no_action, *map("You are at field {}.".format, seen)], stop) for total, seen, stop in expected]
    assert ends_of(episodes) == shown
    assert {total for total, _, _ in expected} == {0.0, 1.0}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A server of OpenEnv on the loopback address, and the module of its environment."""
    pytest.importorskip("openenv", reason="`make agents` makes an environment with OpenEnv")
    import uvicorn
    from openenv.core.env_server import create_fastapi_app  # pyright: ignore[reportMissingImports]

    theirs = module(tmp_path, "openenv_echo", OPENENV, monkeypatch)
    app = create_fastapi_app(theirs.Echo, theirs.Word, theirs.Heard, max_concurrent_envs=EPISODES + 2)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not serving.started:
        time.sleep(0.01)
    yield theirs, f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving.should_exit = True
    thread.join(10)


def test_200_episodes_of_an_environment_of_openenv_behind_its_server(server: tuple[Any, str]) -> None:
    theirs, url = server
    tasks = [Task(id=str(at), question="", info={"most": at % 5}) for at in range(EPISODES)]
    scripts = [[*script, "bye"] for script in actions_of(["a", "to", "the", "bye", "never"])]
    episodes = played(
        tasks, scripts, function="openenv_echo.py:echo", parameters={"url": url}, prompt_role="user", seconds=60.0
    )
    with theirs.EchoClient(base_url=url).sync() as client:
        expected = []
        for task, script in zip(tasks, scripts, strict=True):
            client.reset(most=task.info["most"])
            rewards, seen = [], []
            for word in script:
                result = client.step(theirs.Word(word=word))
                rewards.append(result.reward)
                seen.append(result.observation.text)
                if result.done:
                    break
            known = [reward for reward in rewards if reward is not None]
            expected.append((sum(known) if known else None, seen, "answered"))
    assert ends_of(episodes) == expected
    assert sum(total is None for total, _, _ in expected) > 0
