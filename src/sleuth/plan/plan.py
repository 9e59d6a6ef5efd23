"""The plan of a recipe: counts from its numbers, and costs extrapolated from a probe of its first steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sleuth.factories import continuation_judges_in, judges_in
from sleuth.plan.judge_calls import StepCalls, step_calls
from sleuth.plan.memory import FP32, SIZES
from sleuth.plan.phases import keeps_first_weights
from sleuth.plan.probe import Probe
from sleuth.recipe import (
    AnnotateRecipe,
    EvaluateRecipe,
    GateRecipe,
    GrpoRecipe,
    OnlineDpoRecipe,
    ProbeRecipe,
    ReasonRecipe,
    Recipe,
    StageRecipe,
    TrainingRecipe,
    WinRateRecipe,
)
from sleuth.recipe.judges import HttpJudgeRecipe, LexicalJudgeRecipe

WARM_UP = 1
"""First steps that are left out if there are others: they load code and grow the heap."""
SIGNAL = 0.5
"""Expected share of groups with signal over a run that learns; the cost of an update is proportional to it. First steps
have more (the demo: 0.91 in a probe of 12 steps, 0.50 over the run)."""
NEAR, LATER = 3, 0.6
"""A step costs as much as in the probe for NEAR times the probe's length, and LATER times as much after that: siblings
become more alike, and what they share is computed once (the demo: a step's rollouts took 1.07 s in a probe of 12 steps,
0.99 in steps 13 to 32, and 0.63 from step 65 on)."""
JUDGE_CALLS = ("judge_asked", "watch_asked")
"""Figures that count calls of judges: of those that pay, and of those that watch."""
SUMMED = ("steps", "prompts", "episodes", "tokens", "judge_calls", "seconds", "seconds_at_most")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The plan of one stage: optimiser `steps`, `prompts`, and `episodes` played. Only a probe gives `judge_calls` (0
    if no model judges), `tokens` that the policy samples (trained tokens in supervised stages), expected `seconds`, and
    `seconds_at_most`, if every step costs as much as in the probe.
    """

    name: str
    kind: str
    steps: int = 0
    prompts: int = 0
    episodes: int = 0
    judge_calls: int | None = 0
    tokens: int | None = None
    seconds: float | None = None
    seconds_at_most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run by stage, the judge calls of a step, and peak bytes in memory and on the disk (checkpoints,
    rollouts, figures and evaluations). `ranks` is the memory of each of several ranks. Values that need a probe are
    None without one."""

    stages: tuple[StagePlan, ...]
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    peak_disk_bytes: int | None = None
    ranks: RankMemory | None = None
    step_calls: tuple[StepCalls, ...] = ()

    def total(self, figure: str) -> float | None:
        """The sum of a figure over the stages; None if it is unknown for one of them."""
        values = [getattr(stage, figure) for stage in self.stages]
        return None if None in values else sum(values)

    def as_json(self) -> dict[str, Any]:
        """Sums, peaks and stages as plain values for JSON."""
        table = asdict(self)
        stages = table.pop("stages")
        calls = {"judge_calls_per_step": {step["stage"]: step["calls"] for step in table.pop("step_calls")}}
        return {figure: self.total(figure) for figure in SUMMED} | table | calls | {"stages": stages}


def plan_of(recipe: Recipe, questions: Mapping[int, int], probe: Probe | None = None, *, world: int = 1) -> Plan:
    """The plan of a recipe whose stage i reads `questions[i]` questions, on `world` ranks."""
    stages = tuple(_stage(stage, questions.get(index, 0), probe) for index, stage in enumerate(recipe.stage))
    if probe is None:
        return Plan(stages=stages, step_calls=tuple(step_calls(recipe)))
    return Plan(
        stages=stages,
        step_calls=tuple(step_calls(recipe)),
        peak_memory_bytes=max(cost.host_memory for cost in probe.costs.values()),
        peak_gpu_memory_bytes=max(cost.gpu_memory for cost in probe.costs.values()),
        peak_disk_bytes=_disk(recipe, questions, probe),
        ranks=rank_memory(recipe, probe, world) if world > 1 else None,
    )


def _stage(stage: StageRecipe, questions: int, probe: Probe | None) -> StagePlan:
    if isinstance(stage, AnnotateRecipe):  # a probe asks no teacher
        known = 0 if stage.out.is_file() else None
        return StagePlan(
            name=stage.name,
            kind=stage.kind,
            prompts=0 if stage.out.is_file() else stage.limit,
            tokens=known,
            seconds=known,
            seconds_at_most=known,
        )
    if not isinstance(stage, TrainingRecipe):
        arms = _arms(stage)
        plan: dict[str, Any] = {"prompts": questions, "episodes": questions * arms}
        measured = {} if probe is None else _evaluated(stage, questions, probe)
    else:
        if probe is not None and stage.name not in probe.rows:  # a warm start that is not needed
            seconds = probe.costs[stage.name].seconds["total"]
            return StagePlan(name=stage.name, kind=stage.kind, tokens=0, seconds=seconds, seconds_at_most=seconds)
        steps = stage.last_step
        prompts, samples = _played(stage)
        episodes = steps * prompts * samples
        plan = {"steps": steps, "prompts": steps * prompts, "episodes": episodes}
        if _asks_a_model(stage):
            plan["judge_calls"] = None
        measured = {} if probe is None else _trained(stage, episodes, probe)
    return StagePlan(name=stage.name, kind=stage.kind, **(plan | measured))


def _arms(stage: EvaluateRecipe | WinRateRecipe | ProbeRecipe | GateRecipe | ReasonRecipe) -> int:
    """Episodes for each question."""
    match stage:
        case WinRateRecipe():
            return 2
        case ProbeRecipe():  # at the position, and at another one of its document
            return 2 * stage.samples
        case GateRecipe() | ReasonRecipe():
            return stage.samples
        case EvaluateRecipe():
            return 1 + stage.forced_search_arm


def _played(stage: TrainingRecipe) -> tuple[int, int]:
    """(prompts, samples of each) in one step."""
    if isinstance(stage, GrpoRecipe):
        return stage.prompts_per_step, stage.samples_per_prompt
    if isinstance(stage, OnlineDpoRecipe):
        return stage.prompts_per_step, 0 if stage.loss.kind == "original_nll" else stage.samples_per_prompt
    return 0, 0


def _asks_a_model(stage: TrainingRecipe) -> bool:
    if isinstance(stage, OnlineDpoRecipe):
        return any(isinstance(judge, HttpJudgeRecipe) for judge in continuation_judges_in(stage))
    judges = judges_in(stage.reward) if isinstance(stage, GrpoRecipe) else ()
    return any(not isinstance(use.judge, LexicalJudgeRecipe) for use in judges)


def _evaluated(
    stage: EvaluateRecipe | WinRateRecipe | ProbeRecipe | GateRecipe | ReasonRecipe, questions: int, probe: Probe
) -> dict[str, Any]:
    """The time of asking is proportional to the questions; the rest is spent once."""
    cost, evaluated = probe.costs[stage.name], probe.evaluated[stage.name]
    share = questions / evaluated.questions
    asking = cost.seconds["asking"]
    seconds = cost.seconds["total"] - asking + asking * share
    return {"tokens": round(evaluated.tokens * share), "seconds": seconds, "seconds_at_most": seconds}


def _trained(stage: TrainingRecipe, episodes: int, probe: Probe) -> dict[str, Any]:
    """Extrapolates steps and saves of the probe; the rest of its time is spent once."""
    cost, rows, steps = probe.costs[stage.name], probe.rows[stage.name], stage.last_step
    saves = sum(map(stage.saves_at, range(1, steps + 1)))
    once = cost.seconds["total"] - sum(map(_seconds, rows)) - cost.seconds["saving"]
    fixed = once + cost.seconds["saving"] * saves
    near = min(steps, NEAR * len(rows)) if episodes else steps
    return {
        "judge_calls": round(_typical(sum(row.get(name, 0) for name in JUDGE_CALLS) for row in rows) * steps),
        "tokens": round(_typical(_written(row, episodes / steps) for row in rows) * steps),
        "seconds": fixed + _typical(map(_expected, rows)) * (near + LATER * (steps - near)),
        "seconds_at_most": fixed + _typical(map(_seconds, rows)) * steps,
    }


def _seconds(row: Mapping[str, Any]) -> float:
    return row.get("seconds_rollout", 0.0) + row["seconds_update"]


def _expected(row: Mapping[str, Any]) -> float:
    """Seconds of this step if only the share SIGNAL of its groups had signal."""
    signal = row.get("nonzero_advantage_fraction") or SIGNAL
    return row.get("seconds_rollout", 0.0) + row["seconds_update"] * min(1.0, SIGNAL / signal)


def _written(row: Mapping[str, Any], episodes: float) -> float:
    """Tokens of one step: sampled, or trained if it plays no episodes."""
    return row["response_tokens_mean"] * episodes if episodes else row["tokens_trained"]


def _typical(values: Iterable[float]) -> float:
    """The mean without the warm-up."""
    known = list(values)
    return fmean(known[WARM_UP:] or known)


def _disk(recipe: Recipe, questions: Mapping[int, int], probe: Probe) -> int:
    """Peak bytes of the run folder: the files of all stages, and a checkpoint being written before older ones go."""
    left = writing = 0
    for index, stage in enumerate(recipe.stage):
        if isinstance(stage, AnnotateRecipe):  # its file is outside of the run folder
            continue
        if not isinstance(stage, TrainingRecipe):
            evaluated = probe.evaluated[stage.name]
            left += round(evaluated.bytes * questions[index] / evaluated.questions)
        elif stage.name in probe.rows:
            steps, (weights, state) = stage.last_step, probe.checkpoints[stage.name]
            saves = sum(map(stage.saves_at, range(1, steps + 1)))
            whole = min(saves, stage.keep + 1)  # the best one is kept beside the newest
            milestones = steps // stage.milestone_every if stage.milestone_every else 0
            left += whole * (weights + state) + milestones * weights
            left += round(probe.bytes_a_step[stage.name] * steps)
            writing = max(writing, weights + state if saves > whole else 0)
    return left + writing


MOMENTS = 2 * FP32
"""Bytes of AdamW's moments for a weight; ranks support no other optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak bytes: of `each` rank on its device, on its `host` (the same on a CPU), and of the `first` rank's host at a
    save, when it gathers the whole state.
    `RankMemory(world=4, each=1_076_000_000, host=1_076_000_000, first=1_604_000_000)`."""

    world: int
    each: int
    host: int
    first: int


def rank_memory(recipe: Recipe, probe: Probe, world: int) -> RankMemory:
    """The memory of the most demanding stage. What does not depend on the weights (libraries, activations, the engine's
    cache) is taken from the probe's process."""
    stages = [stage for stage in recipe.stage if isinstance(stage, TrainingRecipe) and stage.name in probe.rows]
    of_stages = [_of_stage(recipe, stage, probe, world) for stage in stages]
    return RankMemory(
        world=world,
        each=max((one.each for one in of_stages), default=0),
        host=max((one.host for one in of_stages), default=0),
        first=max((one.first for one in of_stages), default=0),
    )


def _of_stage(recipe: Recipe, stage: TrainingRecipe, probe: Probe, world: int) -> RankMemory:
    cost, (stored, state) = probe.costs[stage.name], probe.checkpoints[stage.name]
    computed = SIZES[recipe.dtype]  # bytes of a weight in the forward pass
    masters = FP32 if computed < FP32 and stage.master_weights else 0
    stepped = state // (MOMENTS + masters)  # trained weights
    reference = stored if keeps_first_weights(stage) else 0
    # In one process a step holds weights, gradients, moments, and masters or a copy to compare with.
    alone = stored + stepped * (MOMENTS + FP32 + (masters or computed)) + reference
    if world == 1:
        each = cost.gpu_memory or cost.host_memory
        return RankMemory(world=1, each=each, host=cost.host_memory, first=cost.host_memory)
    # On ranks the peak is after a step: the whole model, and shards of weights, moments and the copy.
    shards = stepped * (MOMENTS + (masters or computed)) + (stored - stepped * computed) + reference
    copied, own = stepped * computed, shards // world
    beside = max(0, (cost.gpu_memory or cost.host_memory) - alone)
    each = beside + stored + (shards + copied) // world
    if not cost.gpu_memory:
        return RankMemory(world=world, each=each, host=each, first=beside + stored + own + state)
    if not stage.cpu_offload:
        return RankMemory(world=world, each=each, host=cost.host_memory, first=cost.host_memory + state)
    # The offloaded state peaks within a step, when it has its gradients.
    stepping = (shards + copied + stepped * FP32) // world
    return RankMemory(
        world=world,
        each=beside + stored,
        host=cost.host_memory + stepping,
        first=cost.host_memory + own + state,
    )
