"""The environment of `examples/own_code/my_env.py` in verifiers, with its questions and its reward."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf


class GuessingData(vf.TaskData):
    number: int


class GuessingConfig(vf.TasksetConfig):
    questions: Path


class GuessingTaskset(vf.Taskset[vf.Task[GuessingData, vf.State, vf.TaskConfig], GuessingConfig]):
    def load(self) -> Iterator[vf.Task]:
        for row in map(json.loads, self.config.questions.read_text().splitlines()):
            prompt = f"{row['question']} You have 6 guesses. Write <answer>NUMBER</answer>."
            data = GuessingData(id=row["id"], prompt=prompt, number=int(row["golden_answers"][0]))
            yield vf.Task[GuessingData, vf.State, vf.TaskConfig](data, self.config.task)


class GuessingEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Guessing(vf.Env[GuessingEnvConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        reward = 0.0
        async with agents.player.interaction(task) as game:
            segment = await game.turn()
            for guesses in range(1, 7):
                found = re.search(r"<answer>\s*(\d+)\s*</answer>", segment.last_reply)
                if found and int(found[1]) == task.data.number:
                    reward = 1 / guesses
                    break
                if segment.terminated or guesses == 6:
                    break
                hint = "higher" if found and int(found[1]) < task.data.number else "lower"
                segment = await game.turn(hint if found else "Write one number.")
        game.trace.record_reward("found_early", reward)


__all__ = ["Guessing", "GuessingTaskset"]
