"""A beginning for a policy that never searches: what it does right under a hint, taught without it (STaR,
arXiv:2203.14465)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.data.questions import questions_hash
from sleuth.evaluation.eval_session import EvalSession
from sleuth.factories import Setting, answer_scorer_of, played_tasks, reward_spec_of, setting_of
from sleuth.learn.batch import Row, collate
from sleuth.recipe.envs import EnvRecipe, SearchEnvRecipe, TrainedEnvRecipe
from sleuth.recipe.supervised import HintRecipe, WarmStartRecipe
from sleuth.render import Renderer
from sleuth.stage_context import Saved, StageContext
from sleuth.training.hint_removal import without_hints
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.loop import train
from sleuth.training.sft_trainer import SFTTrainer
from sleuth.types import Episode, Score, SleuthError

LEAST = 8
"""Right episodes without which there is nothing to begin with."""
OWN, HINTED = 0, 1
"""Where the draws of the two arms stand among those of the stage."""
ARMS = ("as it is", "under the hint")


def run_warm_start(stage: WarmStartRecipe, run: StageContext) -> Path:
    """Teach the right episodes; the last checkpoint. The model goes on as it came where it searches already."""
    saved = run.saved()
    if saved and saved.steps >= stage.last_step:
        return saved.checkpoint
    beginner = _beginner(stage, run, saved)
    return train(stage, run, beginner, saved) if beginner else Path(run.model)


def _beginner(stage: WarmStartRecipe, run: StageContext, saved: Saved | None) -> WarmStartTrainer | None:
    """None where the policy searches by itself."""
    lesson = Lesson(stage, run)
    rows, lesson.said = run.ranks.broadcast(lambda: (lesson.rows(), lesson.said))  # the first rank plays them
    return WarmStartTrainer(lesson, rows, saved) if rows else None


class WarmStartTrainer(SFTTrainer):
    """What a warm start teaches: the rows of its lesson, again and again, shuffled anew each time through."""

    def __init__(self, lesson: Lesson, rows: Sequence[Row], saved: Saved | None) -> None:
        if saved:
            begun = lesson.run.begun(saved)
        else:
            lesson.run.adapt(lesson.model)
            begun = lesson.model, lesson.tokenizer
        super().__init__(lesson.stage, lesson.run, saved, *begun)
        self.protocol = lesson.protocol
        self.said = lesson.said
        self.order = InfiniteSampler(rows, seed=lesson.run.key)
        self.rows_per_step = lesson.stage.rows_per_step

    def opening(self) -> list[str]:
        """What was played, and how much of it is taught."""
        return [self.said]

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step on the next rows."""
        started = time.monotonic()
        self.order.taken = (step - 1) * self.rows_per_step
        return self.learn(collate(self.order.take(self.rows_per_step)), started)


class Lesson:
    """The episodes of one warm start, a function of the model that it begins with: a run which goes on plays them
    again. `protocol` is what they are taught under; `said` tells how many there were, once `rows` were played."""

    def __init__(self, stage: WarmStartRecipe, run: StageContext) -> None:
        self.stage = stage
        self.run = run
        self.played_as = run.recipe.grpo_stage_after(run.index)
        self.model, self.tokenizer = run.load(run.model)
        questions = played_tasks(self.played_as, self.tokenizer)
        self.tasks = InfiniteSampler(questions, seed=run.key).take(stage.prompts)
        env, reward = self.played_as.env, self.played_as.reward
        self.real = setting_of(env, self.tokenizer, self.tasks)
        self.hinted = setting_of(hinted_env(env, stage.hint), self.tokenizer, self.tasks)
        self.protocol = self.real.protocol(
            answer_scorer_of(reward),
            self.played_as.context,
            reward=reward_spec_of(reward),
            questions_sha256=questions_hash(questions),
        )
        self.said = ""

    def rows(self) -> list[Row]:
        """The right episodes under the hint as they read without it; none where the policy searches by itself."""
        name, below = self.stage.name, self.stage.below
        own = self._play(self.real, OWN, samples=1)
        searched = fmean(float(episode.trajectory.searches > 0) for episode, _ in own)
        self.said = f"{searched:.0%} of {len(self.tasks)} episodes search"
        if searched >= below:
            self.run.folder.say(f"{self.said}, and below = {below}: {name} is left out")
            return []
        samples = self.stage.samples_per_prompt or self.played_as.samples_per_prompt
        played = self._play(self.hinted, HINTED, samples)
        kept = [episode for episode, score in played if KEPT[self.stage.taught](episode, score)]
        renderer, context = Renderer(self.tokenizer), self.played_as.context
        rows = asyncio.run(without_hints(kept, self.real, self.hinted, renderer, context=context))
        found = f"of {len(played)} episodes under the hint {len(kept)} {WORDS[self.stage.taught]}"
        if len(rows) < LEAST:
            raise SleuthError(
                f"stage {name}: {found}, which makes {len(rows)} different ones in the real protocol, and a beginning "
                f"needs {LEAST}: take more prompts, easier questions or another hint"
            )
        self.said += f"; {found}: {len(rows)} different ones are taught"
        return rows

    def _play(self, setting: Setting, arm: int, samples: int) -> list[tuple[Episode, Score]]:
        """Episodes of the model as it stands, with their strict scores."""
        stage = self.played_as
        seed, *of_stage = self.run.key
        session = EvalSession(
            model=self.model,
            tokenizer=self.tokenizer,
            setting=setting,
            context=stage.context,
            slots=stage.slots,
            temperature=stage.sampling.temperature,
            samples=samples,
            seed=seed,
            draw=(*of_stage, arm),
        )
        return session.ask(self.tasks, f"{self.stage.name}, {ARMS[arm]}")


def hinted_env(env: TrainedEnvRecipe, hint: HintRecipe) -> EnvRecipe:
    """The environment with the hint in it."""
    assert isinstance(env, SearchEnvRecipe)  # a recipe in which anything else is warmed up cannot be read
    role = hint.prompt_role or env.prompt_role
    changes = {
        "dialect": hint.dialect or env.dialect,
        "prompt": hint.prompt or env.prompt,
        "prompt_role": role,
        "template_flags": {} if role == "raw" else env.template_flags,
        "forced_search": hint.forced_search,
    }
    return env.model_copy(update=changes)


def is_right(episode: Episode, score: Score) -> bool:
    """It searched and then gave a golden answer."""
    return is_answered(episode, score) and score.parts.get("em") == 1 and episode.trajectory.searches > 0


def is_answered(episode: Episode, score: Score) -> bool:
    """It ended with an answer. Where a chat template told the story anew there is no one text to teach."""
    return episode.trajectory.stop == "answered" and len(episode.trajectories) == 1


KEPT = {"right": is_right, "answered": is_answered}
WORDS = {"right": "searched and were right", "answered": "ended with an answer"}
