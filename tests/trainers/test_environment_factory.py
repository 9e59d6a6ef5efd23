"""A class written for TRL's `environment_factory` is an environment here as it is, with the same texts and rewards."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from recorded import END, write_model

pytest.importorskip("trl", reason="`make trainers` makes an environment with TRL")

from datasets import Dataset
from recorded_trainer import RecordedTrainer
from trl import GRPOConfig
from trl.chat_template_utils import qwen3_chat_template

from sleuth.answers.tables import EnvironmentReward
from sleuth.data.questions import load_questions
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import Renderer, decode, load_tokenizer
from sleuth.rollout import Rollout
from sleuth.search.tables import ToolEnvRecipe
from sleuth.types import Episode, Sampling

CLASS = '''
class WordGame:
    def __init__(self):
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs) -> str | None:
        """Starts a game with the word of the row."""
        self.word, self.reward, self.done = kwargs["word"], 0.0, False
        return f" It has {len(self.word)} letters and begins with {self.word[0]}."

    def guess(self, word: str) -> str:
        """
        Guess the word.

        Args:
            word: A word of the same length.

        Returns:
            The letters that are in their place, others as dots.
        """
        if self.done:
            raise ValueError("The game is over.")
        self.done = word == self.word
        self.reward = sum(a == b for a, b in zip(word, self.word)) / len(self.word)
        return "".join(a if a == b else "." for a, b in zip(word, self.word))

    def hint(self, place: int) -> str:
        """
        Buys a letter.

        Args:
            place: Its place, from 1.

        Returns:
            The letter.
        """
        self.reward -= 0.125
        return self.word[place - 1]
'''
PAID = """
    def get_reward(self) -> float:
        return self.reward - 1
"""
WORDS = ["stone", "store", "shore", "score", "spare"]
TASKS, SAMPLES = 100, 2
QUESTION = "Find my word."


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripts() -> list[list[str]]:
    """The turns of 200 episodes: guesses, hints, both in one turn, and an end without a call."""
    rng = random.Random(0)

    def turn() -> str:
        guess, hint = call("guess", word=rng.choice(WORDS)), call("hint", place=rng.randint(1, 5))
        return rng.choice([guess, hint, f"{hint}\n{guess}"]) + END

    return [[turn() for _ in range(rng.randint(1, 4))] + [f"That is all.{END}"] for _ in range(TASKS * SAMPLES)]


def by_us(folder: Path) -> list[Episode]:
    """The episodes, played by Sleuth in the class as it is."""
    tokenizer = load_tokenizer(str(folder / "model"))
    (folder / "prompt.txt").write_text("{question}")
    tasks = load_questions(folder / "rows.jsonl", answered=False)
    env = {"kind": "tools", "tools": ["word_game.py:WordGame"], "prompt": "prompt.txt", "prompt_role": "user"}
    setting = ToolEnvRecipe.model_validate({**env, "calls": 9}).setting(tokenizer, tasks)
    written = scripts()

    def turn(text: str, sampling: Sampling) -> str:
        _, prompt, sample, at = sampling.key
        return written[prompt * SAMPLES + sample][at]

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, turn),
        renderer=Renderer(tokenizer, setting.dialect.tags),
        context=2200,
        temperature=1.0,
        key=(0,),
    )
    groups = asyncio.run(rollout.groups(tasks, setting.env, samples=SAMPLES))
    return [episode for group in groups for episode in group.episodes]


@pytest.mark.parametrize("owns_reward", [False, True], ids=["attribute", "get_reward"])
def test_200_episodes_have_the_same_texts_and_rewards_in_trl(
    owns_reward: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model", qwen3_chat_template)
    (tmp_path / "word_game.py").write_text(CLASS + PAID * owns_reward)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"question": QUESTION, "word": WORDS[at % len(WORDS)]} for at in range(TASKS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours = by_us(tmp_path)

    def of_environments(environments: list[Any], **columns: Any) -> list[float]:
        return [one.reward for one in environments]

    asked = [{"role": "user", "content": QUESTION}]
    data = Dataset.from_list([{"prompt": asked, "word": row["word"]} for row in rows for _ in range(SAMPLES)])
    config = {"per_device_train_batch_size": TASKS * SAMPLES, "num_generations": SAMPLES, "max_steps": 1}
    importlib.invalidate_caches()
    monkeypatch.delitem(__import__("sys").modules, "word_game", raising=False)
    trainer = RecordedTrainer(
        model=str(tmp_path / "model"),
        processing_class=load_tokenizer(str(tmp_path / "model")),
        train_dataset=data,
        environment_factory=importlib.import_module("word_game").WordGame,
        reward_funcs=[] if owns_reward else [of_environments],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            max_completion_length=2000,
            **config,
        ),
    )
    for episode in ours:
        before: tuple[int, ...] = ()
        for segment in episode.trajectory.segments:
            if segment.author == "policy":
                trainer.turns[decode(trainer.processing_class, before)].append(segment.tokens)
            before += segment.tokens
    trainer._generate_and_score_completions([*data])

    scores = [EnvironmentReward().score(episode).value for episode in ours]
    assert trainer.rewards[:, 0].tolist() == pytest.approx(scores)
    assert len(scores) == 200
    assert len(set(scores)) > 10
    assert not any(trainer.turns.values())  # each turn followed the same text, prompt and tools included
    assert {episode.trajectory.stop for episode in ours} == {"answered", "turns"}
    assert any(action.same_turn for episode in ours for action in episode.trajectory.actions)
