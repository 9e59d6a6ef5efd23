"""What a recipe will take: what its numbers tell, and what a probe of its first steps measured, carried to the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sleuth.factories import continuation_judges_in, judges_in
from sleuth.plan.probe import Probe
from sleuth.recipe import (
    EvaluateRecipe,
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
from sleuth.training.loop import saves_at

WARM_UP = 1
"""The first step of a process loads code and grows the heap: it does not count where there are others."""
SIGNAL = 0.5
"""Share of a run's groups that carry signal, where it learns: what is all right teaches nothing more. The first steps
show more of them (the demo: 0.91 in a probe of 12 steps, 0.50 over the run), and what an update costs follows them."""
NEAR, LATER = 3, 0.6
"""Steps cost what they did in a probe for so many times its length, and later this share of it: siblings of a policy
that learns come to agree, and what they share is read and computed once (the demo: a step's rollouts took 1.07 s in a
probe of 12 steps, 0.99 in steps 13 to 32, and 0.63 from step 65 on)."""
ASKED = ("judge_asked", "watch_asked")
"""What a step asks of models that judge: of those who pay, and of those who watch them."""
SUMMED = ("steps", "prompts", "episodes", "tokens", "judge_calls", "seconds", "seconds_at_most")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one stage will take: `steps` of the optimiser, `prompts` and the `episodes` that are played for them; and
    what only a probe can tell: `judge_calls`, verdicts of models that are asked for (none where no model judges), the
    `tokens` that the policy writes (that it is taught, where it is taught by rows), `seconds`, and `seconds_at_most`,
    where every step costs what the probe's did.
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
    """What a run will take, stage by stage, and at their peak the bytes in memory and on the disk: of checkpoints,
    rollouts, figures and evaluations. `ranks` is what each of several ranks would hold. None is what only a probe can
    tell, where there was none."""

    stages: tuple[StagePlan, ...]
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    peak_disk_bytes: int | None = None
    ranks: RankMemory | None = None

    def total(self, figure: str) -> float | None:
        """The sum of a figure over the stages; None where a stage does not know it."""
        values = [getattr(stage, figure) for stage in self.stages]
        return None if None in values else sum(values)

    def as_json(self) -> dict[str, Any]:
        """Sums, peaks and stages as plain values."""
        table = asdict(self)
        stages = table.pop("stages")
        return {figure: self.total(figure) for figure in SUMMED} | table | {"stages": stages}


def plan_of(recipe: Recipe, questions: Mapping[int, int], probe: Probe | None = None, *, world: int = 1) -> Plan:
    """The plan of a recipe whose stage number i reads `questions[i]` questions, on so many ranks."""
    stages = tuple(_stage(stage, questions.get(index, 0), probe) for index, stage in enumerate(recipe.stage))
    if probe is None:
        return Plan(stages=stages)
    return Plan(
        stages=stages,
        peak_memory_bytes=max(cost.host_memory for cost in probe.costs.values()),
        peak_gpu_memory_bytes=max(cost.gpu_memory for cost in probe.costs.values()),
        peak_disk_bytes=_disk(recipe, questions, probe),
        ranks=rank_memory(recipe, probe, world) if world > 1 else None,
    )


def _stage(stage: StageRecipe, questions: int, probe: Probe | None) -> StagePlan:
    if not isinstance(stage, TrainingRecipe):
        arms = _arms(stage)
        plan: dict[str, Any] = {"prompts": questions, "episodes": questions * arms}
        told = {} if probe is None else _asked(stage, questions, probe)
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
        told = {} if probe is None else _trained(stage, episodes, probe)
    return StagePlan(name=stage.name, kind=stage.kind, **(plan | told))


def _arms(stage: EvaluateRecipe | WinRateRecipe | ProbeRecipe | ReasonRecipe) -> int:
    """Episodes for each question."""
    match stage:
        case WinRateRecipe():
            return 2
        case ProbeRecipe():  # at the place, and at another of its document
            return 2 * stage.samples
        case ReasonRecipe():
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
    return any(not isinstance(judge, LexicalJudgeRecipe) for _, judge in judges)


def _asked(
    stage: EvaluateRecipe | WinRateRecipe | ProbeRecipe | ReasonRecipe, questions: int, probe: Probe
) -> dict[str, Any]:
    """All but the asking itself is done once, however many are asked."""
    cost, asked = probe.costs[stage.name], probe.asked[stage.name]
    share = questions / asked.questions
    asking = cost.seconds["asking"]
    seconds = cost.seconds["total"] - asking + asking * share
    return {"tokens": round(asked.tokens * share), "seconds": seconds, "seconds_at_most": seconds}


def _trained(stage: TrainingRecipe, episodes: int, probe: Probe) -> dict[str, Any]:
    """Steps cost what those of the probe did, or less where a policy learns; saves what its save did; what is left of
    its time is done once."""
    cost, rows, steps = probe.costs[stage.name], probe.rows[stage.name], stage.last_step
    saves = sum(saves_at(stage, step) for step in range(1, steps + 1))
    once = cost.seconds["total"] - sum(map(_seconds, rows)) - cost.seconds["saving"]
    beside = once + cost.seconds["saving"] * saves
    near = min(steps, NEAR * len(rows)) if episodes else steps
    return {
        "judge_calls": round(_typical(sum(row.get(name, 0) for name in ASKED) for row in rows) * steps),
        "tokens": round(_typical(_written(row, episodes / steps) for row in rows) * steps),
        "seconds": beside + _typical(map(_expected, rows)) * (near + LATER * (steps - near)),
        "seconds_at_most": beside + _typical(map(_seconds, rows)) * steps,
    }


def _seconds(row: Mapping[str, Any]) -> float:
    return row.get("seconds_rollout", 0.0) + row["seconds_update"]


def _expected(row: Mapping[str, Any]) -> float:
    """What a step like this one costs where fewer groups carry signal."""
    signal = row.get("nonzero_advantage_fraction") or SIGNAL
    return row.get("seconds_rollout", 0.0) + row["seconds_update"] * min(1.0, SIGNAL / signal)


def _written(row: Mapping[str, Any], episodes: float) -> float:
    """Tokens of one step."""
    return row["response_tokens_mean"] * episodes if episodes else row["tokens_trained"]


def _typical(values: Iterable[float]) -> float:
    """Their mean, without those of the warm-up."""
    found = list(values)
    return fmean(found[WARM_UP:] or found)


def _disk(recipe: Recipe, questions: Mapping[int, int], probe: Probe) -> int:
    """The most bytes the run folder holds: what all stages leave, and a checkpoint that is written beside those that it
    outlives."""
    left = writing = 0
    for index, stage in enumerate(recipe.stage):
        if not isinstance(stage, TrainingRecipe):
            asked = probe.asked[stage.name]
            left += round(asked.bytes * questions[index] / asked.questions)
        elif stage.name in probe.rows:
            steps, (weights, state) = stage.last_step, probe.checkpoints[stage.name]
            saves = sum(saves_at(stage, step) for step in range(1, steps + 1))
            whole = min(saves, stage.keep + 1)  # the best one stays beside the newest
            milestones = steps // stage.milestone_every if stage.milestone_every else 0
            left += whole * (weights + state) + milestones * weights
            left += round(probe.bytes_a_step[stage.name] * steps)
            writing = max(writing, weights + state if saves > whole else 0)
    return left + writing


FP32 = 4
MOMENTS = 2 * FP32
"""Bytes of a weight's moments: AdamW's, for ranks take no other optimiser."""
STORED = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes at their peak: `each` rank's, where it computes, and in the memory of its `host`, which is the same where
    it computes there; and what the first holds in its host's memory at a save, when the whole state comes together.
    `RankMemory(world=4, each=1_076_000_000, host=1_076_000_000, first=1_604_000_000)`."""

    world: int
    each: int
    host: int
    first: int


def rank_memory(recipe: Recipe, probe: Probe, world: int) -> RankMemory:
    """Of the hungriest stage. What does not depend on the weights (libraries, activations, the engine's cache) is what
    the probe's process held beside them."""
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
    computed = STORED[recipe.dtype]  # bytes of a weight in the forward pass
    masters = FP32 if computed < FP32 and stage.master_weights else 0
    stepped = state // (MOMENTS + masters)  # weights that learn
    reference = stored if _measures_from_the_beginning(stage) else 0
    # In one process a step holds the weights, their gradients and moments, and masters or a copy to compare with.
    alone = stored + stepped * (MOMENTS + FP32 + (masters or computed)) + reference
    if world == 1:
        each = cost.gpu_memory or cost.host_memory
        return RankMemory(world=1, each=each, host=cost.host_memory, first=cost.host_memory)
    # On ranks it is fullest behind a step: the whole model, and in shards weights, moments and the copy.
    shards = stepped * (MOMENTS + (masters or computed)) + (stored - stepped * computed) + reference
    copied, own = stepped * computed, shards // world
    beside = max(0, (cost.gpu_memory or cost.host_memory) - alone)
    each = beside + stored + (shards + copied) // world
    if not cost.gpu_memory:
        return RankMemory(world=world, each=each, host=each, first=beside + stored + own + state)
    if not stage.cpu_offload:
        return RankMemory(world=world, each=each, host=cost.host_memory, first=cost.host_memory + state)
    # What is stepped is fullest in a step, when its gradients lie beside it.
    stepping = (shards + copied + stepped * FP32) // world
    return RankMemory(
        world=world,
        each=beside + stored,
        host=cost.host_memory + stepping,
        first=cost.host_memory + own + state,
    )


def _measures_from_the_beginning(stage: TrainingRecipe) -> bool:
    """Whether it holds the weights that it began with too."""
    if isinstance(stage, GrpoRecipe):
        return bool(stage.loss.beta)
    return isinstance(stage, OnlineDpoRecipe) and stage.loss.kind == "dpo"
