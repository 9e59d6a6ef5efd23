"""Self-improving pretraining (arXiv:2601.21343): continue, judge, choose, prefer, publish, log.

A pool holds the text's own suffix, a teacher's rewrite where there is one, and what the policy makes of the prefix.
The best of it is preferred to the worst, whoever wrote either; pools that tie, or lack verdicts, teach nothing and are
counted. Two control arms share all but the last step: cross-entropy on the best, and, playing and judging nothing, on
the text's own suffix, which is continued pretraining.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.data.documents import read_rewrites
from sleuth.data.questions import questions_hash
from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.candidate_pools import continuations, pools_of
from sleuth.evaluation.judge_exam import CARDS, in_file, require_accurate
from sleuth.factories import (
    JudgePool,
    excerpts_of,
    holding_on,
    optimisation_of,
    preference_judges_in,
    preference_reward_of,
    preference_spec_of,
)
from sleuth.learn.batch import Row, collate
from sleuth.learn.dpo import pair_batch
from sleuth.learn.policy import NotFiniteError, Policy, PreferenceUpdate, Update, frozen_copy, no_update
from sleuth.recipe.preference import OnlineDpoRecipe
from sleuth.render import Renderer
from sleuth.runs.checkpoints import step_name
from sleuth.runs.rollouts import write_rollouts
from sleuth.stage_context import Saved, StageContext
from sleuth.training.distributed_rollout import score_together
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.loop import train
from sleuth.training.pair_selection import Choice, choose, pair_of, pool_figures, signs_of, suffix_row
from sleuth.types import Group, Piece, Sampling, Segment, SleuthError, Task

MECHANICS = "mechanics mode: rules and no judge decide what is preferred; nothing is claimed of quality"


def run_online_dpo(stage: OnlineDpoRecipe, run: StageContext) -> Path:
    """Train until the stage's last step; the last checkpoint."""
    saved = run.saved()
    if saved and saved.steps >= stage.last_step:
        return saved.checkpoint
    with JudgePool(run.folder.verdicts) as judge_pool:
        return train(stage, run, DPOTrainer(stage, run, saved, judge_pool), saved)


class DPOTrainer:
    """The objects of one stage, and its step. Engine and policy share one model: weights are never copied."""

    def __init__(self, stage: OnlineDpoRecipe, run: StageContext, saved: Saved | None, judge_pool: JudgePool) -> None:
        self.stage = stage
        self.run = run
        self.judge_pool = judge_pool
        self.model, self.tokenizer = run.begun(saved)
        self.excerpts = excerpts_of(stage.data, self.tokenizer)
        self.rewrites = rewrites_of(stage, self.tokenizer, self.excerpts.tasks)
        self.order = InfiniteSampler(self.excerpts.tasks, seed=run.key, taken=saved.state["asked"] if saved else 0)
        self.ranks = run.ranks
        self.reward = (
            preference_reward_of(stage.reward, judge_pool) if self.ranks.first else None
        )  # who alone asks judges
        self.reward_spec = preference_spec_of(stage.reward)
        self.judges = self.ranks.broadcast(
            lambda: require_accurate(preference_judges_in(stage.reward), judge_pool, run.folder)
        )
        window = stage.data.prefix_tokens + stage.data.suffix_tokens
        self.engine = LocalEngine(self.model, self.tokenizer, slots=stage.slots, context=window)
        self.policy = Policy(
            self.model,
            optimisation_of(stage),
            self._reference(saved),
            gradient_checkpointing=stage.gradient_checkpointing,
            holding=holding_on(self.ranks, offload=stage.cpu_offload),
        )
        self.budget = run.token_budget(saved)
        if saved:
            run.require_same_reward(saved, self.reward_spec)
            self.policy.load_state_dict(saved.state["policy"])
            self.engine.publish(saved.steps)
        run.folder.manifest.add_hashes(texts=questions_hash(self.order.items), reward=self.reward_spec.hash)

    @property
    def judged_by(self) -> str:
        """Who decides what is preferred, as every row of metrics says it."""
        if self.stage.loss.kind == "original_nll":
            return "nobody"
        return "mechanics" if self.stage.mechanics else ", ".join(part.scorer for part in self.reward_spec.parts)

    def opening(self) -> list[str]:
        """What there is to continue; and, where no judge has a part in it, that."""
        lines = [str(self.excerpts)]
        if self.stage.rewrites is not None:
            lines.append(f"{len(self.rewrites):,} of them have a rewrite in {self.stage.rewrites}")
        return lines + ([MECHANICS] if self.stage.mechanics else [])

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step on fresh pools; its figures."""
        started = time.monotonic()
        groups, choices = asyncio.run(self._pools(step))
        played = time.monotonic()
        self._require_enough(groups, choices)
        update = self._update(groups, choices)
        self.engine.publish(step)
        updated = time.monotonic()
        if choices:
            self._keep(step, groups, choices)
        seconds = {"seconds_rollout": played - started, "seconds_update": updated - played}
        judged = pool_figures(groups, choices) if choices else {}
        return {"judged_by": self.judged_by, **judged, **self.judge_pool.figures(), **update, **seconds}

    def note(self, figures: dict[str, Any]) -> str:
        """What the policy's own come to beside the originals, and how far the pairs are apart."""
        if "ties" not in figures:
            return "no update" if figures["loss"] is None else f"loss {figures['loss']:.3f}"
        named = {"over original": "rollouts_over_original", "margin": "margin", "ties": "ties"}
        return " ".join(f"{name} {_shown(figures.get(key))}" for name, key in named.items())

    def remarks(self, step: int, figures: dict[str, Any]) -> list[str]:
        """Steps that changed nothing."""
        if figures["loss"] is not None or "not_finite" in figures:
            return []
        return [f"step {step}: every pool ties or lacks verdicts, so there was nothing to prefer and no update"]

    def evidence(self, alarm: str) -> str:
        """Where the last step can be read."""
        return f"; see {self.run.folder.rollouts}"

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        state = {
            "policy": self.policy.state_dict(),
            "asked": self.order.taken,
            "budget": self.budget.tokens,
            "reward": self.reward_spec.model_dump(mode="json"),
        }
        beside = {CARDS: in_file(self.judges)} if self.judges else {}
        return self.run.save(step, self.model, self.tokenizer, state, beside=beside)

    async def _pools(self, step: int) -> tuple[list[Group], list[Choice]]:
        """The step's pools, and what is to be learned from each; in continued pretraining nothing is judged."""
        stage, first = self.stage, self.order.taken
        tasks = self.order.take(stage.prompts_per_step)
        key = (*self.run.key, step)
        if stage.loss.kind == "original_nll":
            return pools_of(tasks, [[] for _ in tasks]), []
        mine = self.ranks.share(len(tasks))
        sampling = Sampling(
            max_tokens=stage.data.suffix_tokens, temperature=stage.sampling.temperature, stops=stage.stops, key=key
        )
        own = await continuations(
            tasks[mine], self.engine, sampling, samples=stage.samples_per_prompt, first_prompt=first + mine.start
        )
        pools = self.ranks.all_gather(pools_of(tasks[mine], own, self.rewrites))
        groups = await score_together(pools, self.reward, self.ranks)
        return groups, [choose(group, key) for group in groups]

    def _update(self, groups: Sequence[Group], choices: Sequence[Choice]) -> dict[str, Any]:
        """The figures of an update, or of none where nothing is taught."""
        stage = self.stage
        if stage.loss.kind == "original_nll":
            return self._imitate([suffix_row(group.episodes[0]) for group in groups])
        pairs = [pair for group, choice in zip(groups, choices, strict=True) if (pair := pair_of(group, choice))]
        if stage.loss.kind == "winner_nll":
            return self._imitate([best for best, _ in pairs])
        return self._prefer(pairs)

    def _prefer(self, pairs: Sequence[tuple[Row, Row]]) -> dict[str, Any]:
        if not pairs:
            return no_update(PreferenceUpdate)
        batch, beta = pair_batch(pairs), self.stage.loss.beta
        try:
            return asdict(self.budget.run(lambda budget: self.policy.prefer(batch, beta=beta, budget=budget)))
        except NotFiniteError as error:
            return no_update(PreferenceUpdate) | {"not_finite": str(error)}

    def _imitate(self, rows: Sequence[Row]) -> dict[str, Any]:
        if not rows:
            return no_update(Update)
        batch = collate(rows)
        try:
            return asdict(self.budget.run(lambda budget: self.policy.supervise(batch, budget=budget)))
        except NotFiniteError as error:
            return no_update(Update) | {"not_finite": str(error)}

    def _keep(self, step: int, groups: Sequence[Group], choices: Sequence[Choice]) -> None:
        """All candidates with their scores; the best has the advantage 1, the worst -1."""
        file = self.run.folder.rollouts / f"{step_name(self.run.first_step + step)}.parquet"
        signs = [signs_of(group, choice) for group, choice in zip(groups, choices, strict=True)]
        self.run.folder.backlog.write(f"the rollouts of step {step}", lambda: write_rollouts(file, groups, signs))

    def _require_enough(self, groups: Sequence[Group], choices: Sequence[Choice]) -> None:
        """Too many pools without verdicts pause the run: what is left would be other texts."""
        dropped = [group for group, choice in zip(groups, choices, strict=False) if choice.outcome == "dropped"]
        if not dropped or len(dropped) <= self.stage.max_missing_fraction * len(groups):
            return
        note = next((score.note for score in dropped[0].scores if score.value is None), "")
        raise SleuthError(
            f"{len(dropped)} of {len(groups)} pools lack verdicts ({note}), more than max_missing_fraction = "
            f"{self.stage.max_missing_fraction} allows; nothing was trained: mend the cause and start the run again"
        )

    def _reference(self, saved: Saved | None) -> PreTrainedModel | None:
        """The weights the stage began with, where preferences are measured from them."""
        if self.stage.loss.kind != "dpo":
            return None
        return frozen_copy(self.run.load(self.run.model)[0] if saved else self.model)


def rewrites_of(
    stage: OnlineDpoRecipe, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> dict[str, Segment]:
    """The rewrites of these texts, cut to the length of a suffix. Raises SleuthError where the file has none."""
    if stage.rewrites is None:
        return {}
    found, renderer = read_rewrites(stage.rewrites), Renderer(tokenizer)
    named = {task.id for task in tasks} & found.keys()
    if not named:
        raise SleuthError(f"{stage.rewrites}: has no rewrite of any text of {stage.data.texts}; ids should be the same")
    limit = stage.data.suffix_tokens
    return {name: renderer.render(Piece(text=found[name], author="teacher", budget=limit)) for name in sorted(named)}


def _shown(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:.3f}"
