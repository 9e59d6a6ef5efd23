"""Group-relative policy optimisation (arXiv:2402.03300): play, score, weigh, pack, update, publish, log."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.answers.factory import (
    answer_scorer_of,
    judges_in,
    require_answers,
    require_functions,
    require_gradable,
    require_judges,
    reward_of,
    reward_spec_of,
    rightness,
    scorer_warnings,
)
from sleuth.data.questions import questions_hash
from sleuth.engines.remote.pool import PoolEngine
from sleuth.episodes.function import accepted_hash, all_sources, code_differences, own_code_in
from sleuth.episodes.protocol import HISTORY, OwnCode, ProtocolCard, RewardSpec
from sleuth.episodes.protocol_differences import differences, reward_differences
from sleuth.episodes.setting import Setting, trial_group
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.judges.factory import JudgePool
from sleuth.kernels.device import release_cached_memory, releasing_cached_memory
from sleuth.learn.batch import Advantages
from sleuth.learn.losses import (
    FunctionAdvantages,
    FunctionLoss,
    PolicyLoss,
    group_advantages,
    require_advantages,
    require_loss,
)
from sleuth.learn.models import require_teacher
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import no_update
from sleuth.own.functions import load_function, merged_sources
from sleuth.ranks import Ranks
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.schedule import Schedules, with_numbers
from sleuth.recipe.training import TrainingRecipe
from sleuth.render import Renderer
from sleuth.training.engines import training_engine
from sleuth.training.learning import (
    batches_of_step,
    function_loss_of,
    guidance_of,
    load_teacher,
    model_to_train,
    own_advantages,
    policy_loss_of,
    policy_of,
    starting_weights,
    token_budget,
    update_on,
)
from sleuth.training.loop import Figures, InfiniteSampler, Trainer, figures_of, train
from sleuth.training.own_hooks import HookStage, OwnHook, require_hook
from sleuth.training.rollout_worker import (
    MIN_SIBLINGS,
    HookInputs,
    RolloutWorker,
    hooks_of,
    require_enough_scores,
    store_rollouts,
)
from sleuth.training.servers import program_of
from sleuth.training.stage_context import Saved, StageContext, StageInputs, finished, keep_fitting, last_saved
from sleuth.training.step_metrics import episodes_showing, probe_lines, sampled_entropy, step_figures, values_of
from sleuth.types import Group, SleuthError, Task


def run(stage: GrpoRecipe, context: StageContext) -> Path:
    """Train until the stage's last step; the last checkpoint."""
    saved = last_saved(context)
    if (last := finished(context, saved)) is not None:
        return last
    with JudgePool(context.folder.verdicts, ranks=context.ranks) as judge_pool:
        trainer = GRPOTrainer(stage, context, saved, judge_pool)
        with closing(trainer.worker):
            return train(stage, context, trainer, saved)


def require_inputs(stage: GrpoRecipe, inputs: StageInputs) -> list[Task]:
    """What the stage plays. Raises SleuthError if its model, environment, rewards or judges do not fit it."""
    read = stage.data.tasks(inputs.tokenizer)
    setting, tasks = inputs.setting(stage.data, stage.env, read, stage.context)
    inputs.require_cache(stage, stage.context)
    if stage.credit is not None:
        stage.credit.require_dialect(setting.dialect)
        require_answers([stage.credit], tasks, "credit")
    require_gradable(stage.reward, tasks)
    require_judges(stage.reward)
    if stage.teacher is not None:
        require_teacher(stage.teacher.model, inputs.stage_tokenizer, stage.context, stage.teacher.top_k)
    if stage.loss.function is not None:
        loss = stage.loss
        lags = stage.engine is not None and stage.engine.max_policy_lag > 0
        corrects = lags and loss.old_logprobs == "sampler"
        bounds = {"low": loss.clip_low, "high": loss.clip_high}
        require_loss(function_loss_of(loss), **bounds, beta=loss.beta, corrects=corrects)
    Schedules(stage).require()
    if (advantages := own_advantages(stage.loss)) is not None:
        require_advantages(advantages, stage.samples_per_prompt)
    for name in stage.hooks:
        require_hook(load_function(name))
    if stage.engine is not None and stage.engine.launch is not None:
        program_of(stage.engine)
    if inputs.tokenizer is not None and tasks:
        require_functions(stage.reward, partial(trial_group, setting, tasks[0], inputs.tokenizer, stage.context))
    return tasks


def _scorer_warnings(stage: GrpoRecipe, setting: Setting) -> list[str]:
    return scorer_warnings((reward.answer_scorer for reward in stage.reward), setting)


def notes(stage: GrpoRecipe, inputs: StageInputs, tasks: list[Task]) -> list[str]:
    """Scorers that do not fit the prompt, and how the protocol of the run's first training stage differs from that of
    the model it starts from."""
    model, setting = Path(inputs.recipe.model), stage.env.setting(inputs.tokenizer, tasks)
    lines = _scorer_warnings(stage, setting)
    if inputs.tokenizer is None or inputs.index != min(inputs.recipe.stages_of(TrainingRecipe)):
        return lines
    if ProtocolCard.read(model) is None:
        return lines
    reward, own_code = reward_spec_of(stage.reward), own_code_in(stage)
    now = protocol_of(stage, setting, reward, own_code, questions_hash(tasks))
    return lines + other_protocol(now, model, "the first checkpoint", but=DATA)


def require_ranks(stage: GrpoRecipe, ranks: Ranks) -> None:
    """Raises SleuthError for what only one process can do."""
    if not ranks.alone and (why := stage.data.one_process):
        raise SleuthError(
            f'data.kind = "{stage.data.kind}": {why}, and not by {ranks.world} ranks; train in one process'
        )


class GRPOTrainer(Trainer):
    """The objects of one GRPO stage, and its step. An engine in this process shares the model of the policy: weights
    are never copied."""

    idle = "in no group do the scores differ, so there was nothing to learn"

    def __init__(self, stage: GrpoRecipe, context: StageContext, saved: Saved | None, judge_pool: JudgePool) -> None:
        self.stage, self.context = stage, context
        self.schedules = Schedules(stage)
        self.now = with_numbers(stage, self.schedules.numbers(0, {}))  # with the numbers of the step
        ranks, folder = context.ranks, context.folder
        self.model, self.tokenizer = model_to_train(context, saved)
        read = stage.data.tasks(self.tokenizer)
        setting = stage.env.setting(self.tokenizer, read)
        tasks = keep_fitting(context, stage.data, setting, self.tokenizer, read, stage.context)
        judge_pool.start(judges_in(stage.reward))  # before engines take the rest of shared cards
        self.engine, servers = training_engine(stage, context, self.model, self.tokenizer)
        taken, drawn = (saved.state["asked"], saved.state.get("drawn", "")) if saved else (0, "")
        order = stage.data.stream(taken, drawn) or InfiniteSampler(tasks, seed=context.key, taken=taken)
        self.worker = RolloutWorker(
            stage=self.now,
            context=context,
            engine=self.engine,
            renderer=Renderer(self.tokenizer, setting.dialect.tags),
            setting=setting,
            order=order,
            reward=reward_of(stage.reward, setting.dialect, self.tokenizer, judge_pool),
            judge_pool=judge_pool,
        )
        frozen = starting_weights(context, self.model, saved) if stage.keeps_first_weights else None
        self.policy_loss, self.own_advantages = policy_loss_of(self.now), own_advantages(stage.loss)
        teacher, self.teacher_sha256 = None, None
        if stage.teacher is not None:
            teacher, self.teacher_sha256 = load_teacher(context, stage.teacher.model, self.tokenizer, saved)
        self.policy = policy_of(self.now, self.model, frozen if stage.loss.beta else None, ranks, teacher)
        self.budget = token_budget(context, saved)
        inputs = HookInputs(worker=self.worker, model=self.model, budget=self.budget, frozen=frozen)
        self.hooks = hooks_of(inputs)
        self.groups: list[Group] = []  # of the last step
        self.rollouts = folder.rollouts  # their file
        self.judges = require_accurate(judges_in(stage.reward), judge_pool, folder.say)
        self.reward_spec = ranks.broadcast(lambda: reward_spec_of(stage.reward, judge_pool.identity))
        self.own_code = own_code_in(stage)
        questions = questions_hash(tasks)
        self.protocol = protocol_of(stage, setting, self.reward_spec, self.own_code, questions)
        if saved:
            require_same_reward(context, saved, self.reward_spec, self.own_code)
            self.policy.load_state_dict(saved.state["policy"])
        named = {"name": stage.name, "steps": stage.last_step, "folder": folder.path}
        given = HookStage(**named, model=self.model, tokenizer=self.tokenizer)
        self.hooks += [OwnHook(name, given, context, saved) for name in stage.hooks]
        if isinstance(self.engine, PoolEngine):
            self.engine.read_from(self.policy.masters.source())
            if not self.hooks:  # which compute with the model between updates
                self.policy.masters.stay_in_shards()
        release_cached_memory()
        self.engine.publish(saved.steps if saved else 0)
        if sources := merged_sources(all_sources(self.own_code), self.reward_spec.sources):
            folder.manifest.record("sources", dict(sources), stage=stage.name)
        if servers:
            folder.manifest.record("pools", [server.as_json() for server in servers], stage=stage.name)
        folder.manifest.add_hashes(
            questions=questions,
            protocol=self.protocol.hash if self.protocol else "none",
            reward=self.reward_spec.hash,
            corpus=setting.corpus_sha256 or "none",
            **({"teacher": self.teacher_sha256} if self.teacher_sha256 else {}),
        )
        if setting.retriever_identity is not None:
            folder.manifest.record("retrievers", setting.retriever_identity.as_json(), stage=stage.name)

    def opening(self) -> list[str]:
        """How the protocol differs from that of the first checkpoint, scorers that do not fit it, and what the policy
        can do before it is trained."""
        lines = other_protocol(self.protocol, Path(self.context.model), "the first checkpoint", but=DATA)
        lines += _scorer_warnings(self.stage, self.worker.setting)
        lines += [line for hook in self.hooks for line in hook.opening()]
        if self.stage.probe_prompts:
            groups, _ = self._score(0, self.worker.probe(self.stage.probe_prompts))
            lines += probe_lines(
                groups, searches=self.stage.env.kind == "search", right=partial(rightness, rewards=self.stage.reward)
            )
        return lines

    def continuing(self, checkpoint: Path) -> list[str]:
        """How the protocol differs from that of the steps before, whose recipe is the same: by another index, say."""
        return other_protocol(self.protocol, checkpoint, "the steps before", but=HISTORY)

    def step(self, step: int) -> Figures:
        """One optimiser step on fresh episodes; its figures."""
        started, worked = time.monotonic(), time.process_time()
        numbers = self._apply_schedules(step)
        played = self.worker.play(step)
        worked = time.process_time() - worked
        self.engine.sleep()
        ended = time.monotonic()
        groups, scores = self._score(step, played.groups)
        weigh = partial(step_advantages, groups, self.stage, played.replaced, self.own_advantages)
        advantages = weigh() if self.own_advantages is None else self.context.ranks.broadcast(weigh)
        require_enough_scores(groups, advantages, stage=self.stage)
        with releasing_cached_memory():
            update = self._update(groups, advantages)
        updated = time.monotonic()
        if not self.worker.interrupts or self.stage.evaluates_at(step):  # an evaluation has the servers to itself
            self.worker.wait()
        waited = time.monotonic() - updated
        self.engine.publish(step)
        seconds = {"seconds_rollout": ended - started + waited, "seconds_update": time.monotonic() - ended - waited}
        self.groups, self.rollouts = groups, store_rollouts(self.context, step, groups, advantages)
        figures = step_figures(groups, advantages, played.replaced) | played.figures
        if self.stage.teacher is not None:
            guided = [guidance_of(score, stage=self.stage) > 0 for group in groups for score in group.scores]
            figures["guided_fraction"] = fmean(guided)
        figures |= scores | numbers | update | seconds | self.engine.figures()
        if self.stage.engine is not None and not self.stage.engine.max_policy_lag:
            figures["seconds_client"] = worked
        return figures | {name: value for hook in self.hooks for name, value in hook.measure(step, groups).items()}

    def _apply_schedules(self, step: int) -> Figures:
        """Puts the numbers of this step into force; returns them, but for the learning rate, which an update has."""
        if self.schedules.by_key:
            numbers = self.context.ranks.broadcast(lambda: self.schedules.numbers(step - 1, self.last))
            self.now = self.worker.stage = with_numbers(self.stage, numbers)
            self.policy.optimiser.settings = Optimisation(**self.now.optimisation())
        loss, temperature = self.now.loss, self.now.sampling.temperature
        self.policy_loss = replace(self.policy_loss, beta=loss.beta, temperature=temperature, step=step - 1)
        figures = {"loss.beta": ("beta", loss.beta), "sampling.temperature": ("temperature", temperature)}
        return dict(figure for key, figure in figures.items() if key in self.schedules.by_key)

    def note(self, figures: Figures) -> str:
        """The reward, and the share of groups with signal."""
        return f"reward {_shown(figures['reward_mean'])} signal {_shown(figures['nonzero_advantage_fraction'])}"

    def evidence(self, alarm: str) -> str:
        """Episodes of the last step and their file; none for an alarm of the red team, which plays no episodes."""
        if alarm == "gamed_reward":
            return ""
        return f"; see {', '.join(episodes_showing(alarm, self.groups))} in {self.rollouts.name}"

    def state(self) -> dict[str, Any]:
        return {
            "asked": self.worker.asked,
            **({"drawn": self.worker.drawn} if self.worker.drawn else {}),
            "reward": self.reward_spec.model_dump(mode="json"),
            "teacher": self.teacher_sha256,
            "own_code": {what: code.model_dump(mode="json") for what, code in self.own_code.items()},
            **{name: value for hook in self.hooks for name, value in hook.state_dict().items()},
        }

    def _score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """Add what is scored after all episodes have ended."""
        figures: Figures = {}
        for hook in self.hooks:
            groups, more = hook.score(step, groups)
            figures |= more
        return groups, figures

    def _update(self, groups: Sequence[Group], advantages: Advantages) -> Figures:
        """The figures of an update; of none if no gradient is nonzero. Then the schedule waits too: a step of the
        optimiser would still move the weights by its momentum."""
        loss, figures = self.stage.loss, no_update()
        passes = self.stage.updates_per_batch
        if batches := batches_of_step(groups, advantages, self.now):
            figures = figures_of(lambda: update_on(self.policy, batches, self.policy_loss, self.budget, passes=passes))
        if self.stage.repeats:
            figures["updates"] = passes * len(batches) if figures["loss"] is not None else 0
        if figures["loss"] is not None:
            if loss.old_logprobs == "learner" or not _has_bounds(self.policy_loss):  # no bound could have acted
                figures["clip_fraction"] = None
            figures["old_logprobs"] = loss.old_logprobs
            for hook in self.hooks:
                hook.after_update()
        if figures["entropy"] is None:  # without an update it matters most whether siblings differ at all
            figures["entropy"] = sampled_entropy(groups)
        return figures


def require_same_reward(
    context: StageContext, saved: Saved, reward: RewardSpec, code: Mapping[str, OwnCode] | None = None
) -> None:
    """Raises SleuthError if the stage started under another reward, or with other `code` of the user, unless this one
    was accepted by its hash."""
    before = RewardSpec.model_validate_json(json.dumps(saved.state["reward"]))
    recorded = saved.state.get("own_code", {})
    code_before = {what: OwnCode.model_validate_json(json.dumps(one)) for what, one in recorded.items()}
    hashed = accepted_hash(reward, code or {})
    if (before.hash == reward.hash and code_before == (code or {})) or hashed == context.folder.accepted_reward:
        return
    if before.hash != reward.hash:
        changed = ", and ".join(reward_differences(before, reward, ("the checkpoint", "the recipe")))
        problem = f"its reward {before.hash} is not that of the recipe: {changed}"
    else:
        problem = f"{', '.join(code_differences(code_before, code or {}))} changed after it was saved"
    raise SleuthError(
        f"{saved.checkpoint}: {problem}; start a new run, or continue under the new one with --accept-reward {hashed}"
    )


DATA = ("corpus_sha256", "questions_sha256")
"""Fields in which a model that is trained further on other data always differs from what it was."""


def protocol_of(
    stage: GrpoRecipe, setting: Setting, reward: RewardSpec, own_code: Mapping[str, OwnCode], questions: str
) -> ProtocolCard | None:
    """The protocol that checkpoints carry; None where the policy is not asked anything."""
    if not setting.has_protocol:
        return None
    card = setting.protocol(answer_scorer_of(stage.reward), stage.context, reward=reward, questions_sha256=questions)
    return card.model_copy(update={"loss": own_code.get("loss")})


def other_protocol(now: ProtocolCard | None, checkpoint: Path, name: str, but: Collection[str] = ()) -> list[str]:
    """How the protocol of a stage differs from that of a checkpoint, called `name`, in all fields `but` some."""
    before = ProtocolCard.read(checkpoint)
    if before is None or now is None:
        return []
    same = {*but, *(("retriever",) if before.retriever is None and before.corpus_sha256 else ())}  # an older card
    before = before.model_copy(update={field: getattr(now, field) for field in same})
    return [f"another protocol: {line}" for line in differences(before, now, (name, "this stage"))]


def advantages_of(group: Group, stage: GrpoRecipe, replaced: bool = False) -> list[float | None]:
    """The advantage of each episode; None for one that is left out of the loss, because its group was replaced, its
    score is missing or too few siblings have one."""
    values = values_of(group)
    if replaced or sum(value is not None for value in values) < MIN_SIBLINGS:
        return [None] * len(values)
    return group_advantages(values, stage.loss.advantage if stage.loss.own_advantage is None else "none")


def step_advantages(
    groups: Sequence[Group], stage: GrpoRecipe, replaced: Container[int] = (), own: FunctionAdvantages | None = None
) -> list[list[float | None]]:
    """`advantages_of` each group; by a function of the user where there is one, of those that are in the loss."""
    found = [advantages_of(group, stage, at in replaced) for at, group in enumerate(groups)]
    if own is not None:
        kept = [at for at, of_group in enumerate(found) if any(value is not None for value in of_group)]
        for at, of_group in zip(kept, own([values_of(groups[at]) for at in kept]) if kept else (), strict=True):
            found[at] = of_group
    return found


def _has_bounds(loss: PolicyLoss) -> bool:
    return not isinstance(loss.function, FunctionLoss) or not {"low", "high"}.isdisjoint(loss.function.optional)


def _shown(figure: float | None) -> str:
    return "missing" if figure is None else f"{figure:.3f}"
