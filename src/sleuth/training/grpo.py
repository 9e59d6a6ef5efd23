"""Group-relative policy optimisation (arXiv:2402.03300): play, score, weigh, pack, update, publish, log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sleuth.data.questions import questions_hash
from sleuth.dialects.refine import refines
from sleuth.engines.stops import find_eos_ids
from sleuth.evaluation.judge_exam import CARDS, in_file, require_accurate
from sleuth.evaluation.search_gain import require_text
from sleuth.factories import (
    JudgePool,
    ThoughtSetting,
    answer_scorer_of,
    engine_of,
    holding_on,
    judges_in,
    optimisation_of,
    played_tasks,
    policy_loss_of,
    reward_of,
    reward_spec_of,
    scorer_warnings,
    setting_of,
)
from sleuth.learn.advantages import has_signal
from sleuth.learn.policy import NotFiniteError, Policy, frozen_copy, no_update
from sleuth.recipe.envs import SearchEnvRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.runs.checkpoints import step_name
from sleuth.runs.protocol import ProtocolCard
from sleuth.runs.protocol_differences import differences
from sleuth.runs.rollouts import write_rollouts
from sleuth.stage_context import Saved, StageContext
from sleuth.training.alarm_evidence import episodes_showing
from sleuth.training.batching import advantages_of, teaches, training_batch
from sleuth.training.credit.credit_assignment import assign_credit
from sleuth.training.credit.thought_gain import gain_in
from sleuth.training.distributed_rollout import play_together
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.loop import train
from sleuth.training.prefetch import Prefetcher, off_policy_fraction
from sleuth.training.red_team import Attack, attack
from sleuth.training.step_metrics import Advantages, probe_lines, sampled_entropy, step_figures, values_of
from sleuth.training.thinking import Thoughts, shuffled_scores
from sleuth.types import Group, SleuthError, Task


def run_grpo(stage: GrpoRecipe, run: StageContext) -> Path:
    """Train until the stage's last step; the last checkpoint."""
    saved = run.saved()
    if saved and saved.steps >= stage.last_step:
        return saved.checkpoint
    with JudgePool(run.folder.verdicts) as judge_pool, closing(GRPOTrainer(stage, run, saved, judge_pool)) as trainer:
        return train(stage, run, trainer, saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The groups of a step, those at the places `replaced` for their figures alone, how many questions had been asked
    by its end, and what became of those that were put to judges."""

    groups: list[Group]
    replaced: set[int]
    asked: int
    judged: dict[str, float | None]


class GRPOTrainer:
    """The objects of one GRPO stage, and its step. The engine in this process and the policy share one model: its
    weights are never copied."""

    def __init__(self, stage: GrpoRecipe, run: StageContext, saved: Saved | None, judge_pool: JudgePool) -> None:
        self.stage = stage
        self.run = run
        self.judge_pool = judge_pool
        self.model, self.tokenizer = run.begun(saved)
        self.renderer = Renderer(self.tokenizer)
        tasks = played_tasks(stage, self.tokenizer)
        self.order = InfiniteSampler(tasks, seed=run.key, taken=saved.state["asked"] if saved else 0)
        self.setting = setting_of(stage.env, self.tokenizer, self.order.items)
        if stage.credit is not None and stage.credit.kind == "search_gain":
            require_text(self.setting.dialect)
        self.ranks = run.ranks
        first = self.ranks.first  # who alone asks judges
        self.reward = reward_of(stage.reward, self.setting.dialect, self.tokenizer, judge_pool) if first else None
        self.engine, servers = engine_of(
            stage, self.model, self.tokenizer, weights=run.folder.path / "weights", say=run.folder.say
        )
        self.frozen = self._frozen(saved)
        self.policy = Policy(
            self.model,
            optimisation_of(stage),
            self.frozen if stage.loss.beta else None,
            gradient_checkpointing=stage.gradient_checkpointing,
            holding=holding_on(self.ranks, offload=stage.cpu_offload),
        )
        self.thoughts = self._thoughts(saved)
        self.budget = run.token_budget(saved)
        self.asked = self.order.taken  # by the end of the last step; those of the next may be under way
        self.next: Prefetcher[Played] | None = None
        self.played: list[Group] = []  # in the last step, and where they are kept
        self.rollouts = run.folder.rollouts
        questions = questions_hash(self.order.items)
        self.judges = self.ranks.broadcast(lambda: require_accurate(judges_in(stage.reward), judge_pool, run.folder))
        self.reward_spec = self.ranks.broadcast(lambda: reward_spec_of(stage.reward, judge_pool.identity))
        self.protocol = self._protocol(questions)
        if saved:
            run.require_same_reward(saved, self.reward_spec)
            self.policy.load_state_dict(saved.state["policy"])
        self.engine.publish(saved.steps if saved else 0)
        if servers:
            run.folder.manifest.set_pool(stage.name, servers)
        run.folder.manifest.add_hashes(
            questions=questions,
            protocol=self.protocol.hash if self.protocol else "none",
            reward=self.reward_spec.hash,
            corpus=self.setting.corpus_sha256 or "none",
        )

    def opening(self) -> list[str]:
        """Where the protocol is another than that of the weights the stage begins with, and what the policy can do
        before it has learned anything, in sentences."""
        before, now = ProtocolCard.read(Path(self.run.model)), self.protocol
        changed = differences(before, now, ("the first checkpoint", "this stage")) if before and now else []
        lines = [f"another protocol: {sentence}" for sentence in changed]
        lines += scorer_warnings(self.stage.reward, self.setting)
        if self._is_attacked:
            lines.append(self.ranks.broadcast(lambda: self._attack(self.order.items).line()))
        if not self.stage.probe_prompts:
            return lines
        tasks = self.order.peek(self.stage.probe_prompts)
        played, _ = self._paid(asyncio.run(self._groups(tasks, step=0, first_prompt=0)), 0)
        self.judge_pool.figures()  # what was asked of the probe is no step's
        return lines + probe_lines(played, searches=isinstance(self.stage.env, SearchEnvRecipe))

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step on fresh episodes; its figures."""
        started = time.monotonic()
        rollouts = self.next.result() if self.next is not None else asyncio.run(self._play(step))
        groups, replaced, self.asked = rollouts.groups, rollouts.replaced, rollouts.asked
        stale = off_policy_fraction(groups, step - 1, max_policy_lag=self._max_policy_lag)
        self.next = (
            Prefetcher(lambda: self._play(step + 1)) if self._max_policy_lag and step < self.stage.last_step else None
        )
        self.engine.sleep()
        played = time.monotonic()
        groups, paid = self._paid(groups, step)
        advantages = [advantages_of(group, self.stage, replaced=at in replaced) for at, group in enumerate(groups)]
        self._require_enough(groups, advantages)
        update = self._update(groups, advantages)
        if self.thoughts is not None and update["loss"] is not None:
            self.thoughts.follow(self.model)
        learned = time.monotonic()
        if self.next is not None:  # a turn is written by one version of the weights, whole
            self.next.wait()
        waited = time.monotonic() - learned
        self.engine.publish(step)
        updated = time.monotonic()
        self.played = groups
        self.rollouts = file = self.run.folder.rollouts / f"{step_name(self.run.first_step + step)}.parquet"
        self.run.folder.backlog.write(f"the rollouts of step {step}", lambda: write_rollouts(file, groups, advantages))
        if update["entropy"] is None:  # without an update it matters most whether siblings differ at all
            update["entropy"] = sampled_entropy(groups)
        seconds = {"seconds_rollout": played - started + waited, "seconds_update": updated - played - waited}
        figures = step_figures(groups, advantages, replaced) | rollouts.judged
        figures |= {"off_policy_fraction": stale} if self._max_policy_lag else {}
        return figures | paid | update | seconds | dict(self.engine.figures()) | self._attacked(step)

    def close(self) -> None:
        """Nothing is under way any more."""
        if self.next is not None:
            self.next.cancel()

    @property
    def _max_policy_lag(self) -> int:
        """How many updates the weights that write may lack."""
        return self.stage.engine.max_policy_lag if self.stage.engine is not None else 0

    @property
    def _is_attacked(self) -> bool:
        return bool(self.stage.red_team_every) and refines(self.setting.dialect)

    def _attacked(self, step: int) -> dict[str, Any]:
        """What known tricks would have been paid on the questions of this step, where it is their turn."""
        if not self._is_attacked or step % self.stage.red_team_every:
            return {}
        return self.ranks.broadcast(lambda: self._attack([group.task for group in self.played]).figures())

    def _attack(self, tasks: Sequence[Task]) -> Attack:
        assert self.reward is not None
        found = asyncio.run(attack(tasks, self.setting, self.reward))
        self.judge_pool.figures()  # what was asked of the judges for it is no step's
        return found

    def note(self, figures: dict[str, Any]) -> str:
        """What matters most: reward, and whether there is anything to learn from."""
        return f"reward {_shown(figures['reward_mean'])} signal {_shown(figures['nonzero_advantage_fraction'])}"

    def remarks(self, step: int, figures: dict[str, Any]) -> list[str]:
        """Steps that changed nothing."""
        if figures["loss"] is not None or "not_finite" in figures:
            return []
        return [f"step {step}: in no group do the scores differ, so there was nothing to learn and no update"]

    def evidence(self, alarm: str) -> str:
        """Episodes of the last step, and where they can be read; none shows what tricks would have been paid."""
        if alarm == "gamed_reward":
            return ""
        return f"; see {', '.join(episodes_showing(alarm, self.played))} in {self.rollouts.name}"

    def save(self, step: int) -> Path:
        """A checkpoint after `step` steps."""
        state = {
            "policy": self.policy.state_dict(),
            "asked": self.asked,
            "budget": self.budget.tokens,
            "reward": self.reward_spec.model_dump(mode="json"),
            **({"scorer": self.thoughts.state_dict()} if self.thoughts is not None else {}),
        }
        beside = {CARDS: in_file(self.judges)} if self.judges else {}
        return self.run.save(step, self.model, self.tokenizer, state, protocol=self.protocol, beside=beside)

    async def _play(self, step: int) -> Played:
        """The step's scored groups in the order in which they were played. If the recipe asks for it, groups without
        signal make room in the update for other questions."""
        groups = await self._fresh(step, self.stage.prompts_per_step)
        replaced: set[int] = set()
        for _ in range(self.stage.replace_no_signal):
            idle = {at for at, group in enumerate(groups) if not has_signal(values_of(group))} - replaced
            if not idle:
                break
            replaced |= idle
            groups += await self._fresh(step, len(idle))
        return Played(groups=groups, replaced=replaced, asked=self.order.taken, judged=self.judge_pool.figures())

    async def _fresh(self, step: int, count: int) -> list[Group]:
        first = self.order.taken
        return await self._groups(self.order.take(count), step=step, first_prompt=first)

    async def _groups(self, tasks: Sequence[Task], *, step: int, first_prompt: int) -> list[Group]:
        stage = self.stage
        rollout = Rollout(
            engine=self.engine,
            renderer=self.renderer,
            context=stage.context,
            temperature=stage.sampling.temperature,
            key=(*self.run.key, step),
        )
        groups = await play_together(
            rollout,
            tasks,
            self.setting.env,
            samples=stage.samples_per_prompt,
            first_prompt=first_prompt,
            reward=self.reward,
            ranks=self.ranks,
        )
        if any(reward.shuffle for reward in stage.reward) and self.thoughts is None:
            groups = shuffled_scores(groups, key=(*self.run.key, step))
        return groups

    def _paid(self, groups: list[Group], step: int) -> tuple[list[Group], dict[str, Any]]:
        """With what is told behind all episodes: what thoughts gained, and what each search is paid by itself, where
        the recipe pays for it; and the figures of that."""
        if self.thoughts is not None:
            return self.thoughts.paid(groups, self.budget, (*self.run.key, step))
        recipe = self.stage.credit
        if recipe is None:
            return groups, {}
        return self.budget.run(
            lambda budget: assign_credit(
                groups,
                recipe,
                self.model,
                self.renderer,
                self.setting,
                budget=budget,
                temperature=self.stage.sampling.temperature,
                ranks=self.ranks,
            )
        )

    def _update(self, groups: Sequence[Group], advantages: Advantages) -> dict[str, Any]:
        """The figures of an update, or of none where nothing is taught."""
        if not teaches(groups, advantages, self.stage):
            return no_update()
        batch, loss = training_batch(groups, advantages, self.stage), policy_loss_of(self.stage)
        try:
            figures = asdict(self.budget.run(lambda budget: self.policy.update(batch, loss, budget=budget)))
        except NotFiniteError as error:
            return no_update() | {"not_finite": str(error)}
        if (
            self.stage.loss.old_logprobs == "learner"
        ):  # one update a batch: every ratio is 1, so that no bound could have acted
            figures["clip_fraction"] = None
        return figures | {"old_logprobs": self.stage.loss.old_logprobs}

    def _require_enough(self, groups: Sequence[Group], advantages: Advantages) -> None:
        """Too many missing scores pause the run: what is left would be another distribution."""
        notes = [score.note for group in groups for score in group.scores if score.value is None]
        episodes = sum(len(group.episodes) for group in groups)
        allowed = self.stage.max_missing_fraction
        if len(notes) > allowed * episodes:
            reason = f"more than max_missing_fraction = {allowed} allows"
        elif all(advantage is None for of_group in advantages for advantage in of_group):
            reason = f"so that no group keeps the min_siblings = {self.stage.min_siblings} scores that it needs"
        else:
            return
        raise SleuthError(
            f"{len(notes)} of {episodes} scores are missing ({notes[0]}), {reason}; "
            "nothing was trained: mend the cause and start the run again"
        )

    def _protocol(self, questions: str) -> ProtocolCard | None:
        """What travels with the checkpoints; a policy that thinks about texts is asked nothing."""
        if isinstance(self.setting, ThoughtSetting):
            return None
        return self.setting.protocol(
            answer_scorer_of(self.stage.reward),
            self.stage.context,
            reward=self.reward_spec,
            questions_sha256=questions,
        )

    def _thoughts(self, saved: Saved | None) -> Thoughts | None:
        if not isinstance(self.setting, ThoughtSetting):
            return None
        moved = saved.state["scorer"] if saved else {}
        ends = find_eos_ids(self.model.generation_config, self.tokenizer)
        return Thoughts(self.stage, self.setting, ends, self.frozen, moved)

    def _frozen(self, saved: Saved | None) -> PreTrainedModel | None:
        """The weights the stage began with, where the loss measures a distance to them or thoughts are scored by
        them."""
        if not self.stage.loss.beta and gain_in(self.stage.reward) is None:
            return None
        return frozen_copy(self.run.load(self.run.model)[0] if saved else self.model)


def _shown(figure: float | None) -> str:
    return "missing" if figure is None else f"{figure:.3f}"
