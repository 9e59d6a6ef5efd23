"""Self-improving pretraining (arXiv:2601.21343): continue, judge, choose, prefer, publish, log.

A pool holds the text's own suffix and the policy's continuations of the prefix. The best candidate is preferred to the
worst, whoever wrote them; pools that tie, or lack verdicts, are not trained and are counted. Two control arms share all
but the last step: cross-entropy on the best, and, without sampling or judging, on the text's own suffix, which is
continued pretraining.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sleuth.answers.answer import TotalReward
from sleuth.answers.factory import judges_in, require_functions, reward_spec_of
from sleuth.data.excerpts import excerpts_of
from sleuth.data.questions import questions_hash
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.judges.factory import JudgePool
from sleuth.kernels.device import releasing_cached_memory
from sleuth.learn.batch import Row, collate
from sleuth.learn.policy import Update, no_update
from sleuth.rollout import scored
from sleuth.think.dpo import PreferenceLoss, PreferenceUpdate, pair_batch
from sleuth.think.pools import (
    Choice,
    candidate_row,
    choose,
    continuations,
    pair_of,
    pool_figures,
    pools_of,
    require_pools,
    signs_of,
)
from sleuth.think.preference_tables import OnlineDpoRecipe
from sleuth.training.engines import local_engine
from sleuth.training.grpo import require_same_reward
from sleuth.training.learning import model_to_train, policy_of, starting_weights, token_budget
from sleuth.training.loop import Figures, InfiniteSampler, Trainer, train, update_figures
from sleuth.training.rollout_worker import store_rollouts
from sleuth.training.stage_context import Saved, StageContext, StageInputs, finished, last_saved
from sleuth.types import Group, Sampling, SleuthError, Task


def run(stage: OnlineDpoRecipe, context: StageContext) -> Path:
    """Train until the stage's last step; the last checkpoint."""
    saved = last_saved(context)
    if (last := finished(context, saved)) is not None:
        return last
    with JudgePool(context.folder.verdicts, ranks=context.ranks) as judge_pool:
        return train(stage, context, DPOTrainer(stage, context, saved, judge_pool), saved)


def require_inputs(stage: OnlineDpoRecipe, inputs: StageInputs) -> list[Task]:
    """The texts of the stage. Raises SleuthError if they do not fit the model, or cannot be judged."""
    tasks = require_pools(stage, inputs.tokenizer, inputs.positions)
    inputs.require_cache(stage, stage.data.prefix_tokens + stage.data.suffix_tokens)
    if tasks:
        require_functions(stage.reward, lambda: pools_of(tasks[:1], [[]])[0])
    return tasks


class DPOTrainer(Trainer):
    """The objects of one stage, and its step. The engine shares the model of the policy: weights are never copied."""

    idle = "every pool ties or lacks verdicts, so there was nothing to prefer"

    def __init__(
        self, stage: OnlineDpoRecipe, context: StageContext, saved: Saved | None, judge_pool: JudgePool
    ) -> None:
        self.stage, self.context, self.judge_pool = stage, context, judge_pool
        ranks, folder = context.ranks, context.folder
        self.model, self.tokenizer = model_to_train(context, saved)
        self.excerpts = excerpts_of(stage.data, self.tokenizer)
        taken = saved.state["asked"] if saved else 0
        self.order = InfiniteSampler(self.excerpts.tasks, seed=context.key, taken=taken)
        asked = stage.asked_rewards
        self.judges = require_accurate(judges_in(asked), judge_pool, folder.say)
        self.reward = TotalReward([one.build(judge_pool) for one in asked], [one.weight for one in asked])
        self.reward_spec = reward_spec_of(stage.reward)
        window = stage.data.prefix_tokens + stage.data.suffix_tokens
        self.engine = local_engine(context, self.model, self.tokenizer, window)
        reference = starting_weights(context, self.model, saved) if stage.loss.kind == "dpo" else None
        self.policy = policy_of(stage, self.model, reference, ranks)
        self.budget = token_budget(context, saved)
        if saved:
            require_same_reward(context, saved, self.reward_spec)
            self.policy.load_state_dict(saved.state["policy"])
            self.engine.publish(saved.steps)
        if sources := self.reward_spec.sources:
            folder.manifest.record("sources", dict(sources), stage=stage.name)
        folder.manifest.add_hashes(texts=questions_hash(self.order.items), reward=self.reward_spec.hash)

    @property
    def judged_by(self) -> str:
        """The judges, as in every row of metrics."""
        if self.stage.loss.kind == "original_nll":
            return "nobody"
        return ", ".join(part.scorer for part in self.reward_spec.parts)

    def opening(self) -> list[str]:
        """How many texts there are to continue."""
        return [str(self.excerpts)]

    def step(self, step: int) -> Figures:
        """One optimiser step on fresh pools; its figures."""
        started = time.monotonic()
        groups, choices = asyncio.run(self._pools(step))
        self.engine.sleep()
        played = time.monotonic()
        self._require_enough(groups, choices)
        with releasing_cached_memory():
            update = self._update(groups, choices)
        self.engine.publish(step)
        updated = time.monotonic()
        if choices:
            signs = [signs_of(group, choice) for group, choice in zip(groups, choices, strict=True)]
            store_rollouts(self.context, step, groups, signs)
        seconds = {"seconds_rollout": played - started, "seconds_update": updated - played}
        judged = pool_figures(groups, choices) if choices else {}
        ranks = self.context.ranks
        asked = self.judge_pool.figures(ranks) | self.judge_pool.seconds(ranks)
        return {"judged_by": self.judged_by, **judged, **asked, **update, **seconds}

    def note(self, figures: Figures) -> str:
        """How often the policy beats the original, the margin of the pairs, and the share of ties."""
        if "ties" not in figures:
            return "no update" if figures["loss"] is None else f"loss {figures['loss']:.3f}"
        named = {"over original": "rollouts_over_original", "margin": "margin", "ties": "ties"}
        return " ".join(f"{name} {_shown(figures.get(key))}" for name, key in named.items())

    def evidence(self, alarm: str) -> str:
        """Where the rollouts are."""
        return f"; see {self.context.folder.rollouts}"

    def state(self) -> dict[str, Any]:
        return {"asked": self.order.taken, "reward": self.reward_spec.model_dump(mode="json")}

    async def _pools(self, step: int) -> tuple[list[Group], list[Choice]]:
        """The step's pools, and the choice of each; continued pretraining samples and judges nothing."""
        stage, first = self.stage, self.order.taken
        tasks = self.order.take(stage.prompts_per_step)
        key = (*self.context.key, step)
        if stage.loss.kind == "original_nll":
            return pools_of(tasks, [[] for _ in tasks]), []
        sampling = Sampling(
            max_tokens=stage.data.suffix_tokens, temperature=stage.sampling.temperature, stops=stage.stops, key=key
        )
        samples = stage.samples_per_prompt

        async def scored_pools(mine: Sequence[Task], at: int) -> list[Group]:
            own = await continuations(mine, self.engine, sampling, samples=samples, first_prompt=first + at)
            return await scored(pools_of(mine, own), self.reward)

        groups = await self.context.ranks.deal(tasks, scored_pools)
        return groups, [choose(group, key) for group in groups]

    def _update(self, groups: Sequence[Group], choices: Sequence[Choice]) -> Figures:
        """The figures of an update; of none if there is no row to train."""
        loss, pairs = self.stage.loss, list[tuple[Row, Row]]()
        if loss.kind == "original_nll":
            rows = [candidate_row(group.episodes[0]) for group in groups]
        else:
            pairs = [pair for group, choice in zip(groups, choices, strict=True) if (pair := pair_of(group, choice))]
            rows = [best for best, _ in pairs]
        kind = PreferenceUpdate if loss.kind == "dpo" else Update
        if not rows:
            return no_update(kind)
        batch = pair_batch(pairs) if loss.kind == "dpo" else collate(rows)

        def update(budget: int) -> Update:
            if loss.kind == "dpo":
                return self.policy.minimise(batch, PreferenceLoss(beta=loss.beta), kind, budget=budget)
            return self.policy.supervise(batch, budget=budget)

        return update_figures(self.budget, update, kind)

    def _require_enough(self, groups: Sequence[Group], choices: Sequence[Choice]) -> None:
        """Raises SleuthError if too many pools lack verdicts: the rest would be another distribution of texts."""
        dropped = [group for group, choice in zip(groups, choices, strict=False) if choice.outcome == "dropped"]
        if not dropped or len(dropped) <= self.stage.max_missing_fraction * len(groups):
            return
        note = next((score.note for score in dropped[0].scores if score.value is None), "")
        raise SleuthError(
            f"{len(dropped)} of {len(groups)} pools lack verdicts ({note}), more than max_missing_fraction = "
            f"{self.stage.max_missing_fraction} allows; nothing was trained: remove the cause and start the run again"
        )


def _shown(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:.3f}"
