"""Whether a recipe fits a card: bytes by phase, changes that make it fit, and an estimate of the time. Runs nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from sleuth.host.disk import SLACK, DiskPlan
from sleuth.host.hardware import Card, Cards
from sleuth.host.memory import parse_share
from sleuth.plan.memory import CPU, CUDA, SIZES, total
from sleuth.plan.phases import (
    SERVER,
    SERVER_SHARE,
    Machine,
    Phase,
    StagePlan,
    learner_of,
    phases_of,
    problems_of,
    ranks_and_servers,
)
from sleuth.plan.shapes import ModelShape, random_shape, shape_of
from sleuth.plan.speed import ASSUMED, MEASURED, StageTime, missing_bytes, served_bytes, stage_time, state_bytes
from sleuth.recipe import Recipe, TrainingRecipe
from sleuth.recipe.training import LoraRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The plan of a recipe for `ranks` cards that train, `servers` that have one each, and `others` with judges and
    teachers. `change` makes it fit, if it does not and a change was found."""

    card: str
    memory: int
    ranks: int
    servers: int
    others: int
    phases: tuple[Phase, ...]
    stages: tuple[StageTime, ...]
    peak_disk_bytes: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    change: Change | None = None
    threads: int = 1
    downloads: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every phase has room, with a cache for one sequence at least."""
        return not self.problems

    @property
    def peak_memory_bytes(self) -> int:
        """The most bytes of a card at any time, with the cache as large as it will be."""
        return max(total(phase.bytes) for phase in self.phases)

    def by_stage(self) -> dict[str, dict[str, Any]]:
        """Peak bytes, counts and estimated seconds of each stage, which its report shows beside those that were
        measured."""
        peaks: dict[str, int] = {}
        for phase in self.phases:
            peaks[phase.stage] = max(peaks.get(phase.stage, 0), total(phase.bytes))
        return {
            stage.name: {"memory_bytes": peaks.get(stage.name)}
            | {name: getattr(stage, name) for name in ("seconds", "purposes", "searches", "calls", "computed")}
            for stage in self.stages
        }

    @property
    def needed_bytes(self) -> int:
        """The least bytes of a card that the recipe runs with; the cache then holds one sequence."""
        return max(phase.needed for phase in self.phases)

    @property
    def host_memory_bytes(self) -> int:
        """The most bytes of a rank's host that belong to the model's state."""
        return max(total(phase.host) for phase in self.phases)

    @property
    def spare(self) -> float:
        """The share of the card that is left beside what is needed."""
        return 1 - self.needed_bytes / self.memory

    @property
    def seconds(self) -> float | None:
        """The estimated time of all stages and of the start of servers; None if that of a stage is unknown."""
        seconds = [stage.seconds for stage in self.stages]
        return None if None in seconds else self.start + sum(filter(None, seconds))

    @property
    def start(self) -> float:
        """Seconds in which the servers that the run starts are ready."""
        return sum(stage.start for stage in self.stages)

    @property
    def own_cards(self) -> int:
        """Cards that the run has while it lasts."""
        return self.ranks + self.servers + self.others

    @property
    def judge_cards(self) -> int:
        """Cards of judges and teachers that run already, in the stage with most of them."""
        return max(stage.judge_cards for stage in self.stages)

    @property
    def seconds_by_phase(self) -> dict[str, float]:
        """`{"start of servers": 68.0, "grpo: rollouts": 19770.0, ...}`, as far as they are known."""
        started = {"start of servers": self.start} if self.start else {}
        return started | {f"{one.name}: {name}": spent for one in self.stages for name, spent in one.purposes.items()}

    @property
    def card_hours(self) -> float | None:
        """Hours of its own cards, and of others during the stages that need them; None where the time is unknown."""
        if self.seconds is None:
            return None
        others = sum(stage.judge_cards * (stage.seconds or 0) for stage in self.stages)
        return (self.own_cards * self.seconds + others) / 3600

    def line(self) -> str:
        """`fits 8 x h100-80 by the plan: 51.2 of 80.0 GB are needed (grpo: update), 36% are spare`."""
        worst = max(self.phases, key=lambda phase: phase.needed)
        where = f"{self.own_cards} x {self.card}"
        if self.servers or self.others:
            kinds = {"have a server": self.servers, "a judge or teacher": self.others}
            where = f"{where}, of which {' and '.join(f'{count} {kind}' for kind, count in kinds.items() if count)},"
        needed = f"{self.needed_bytes / 1e9:.1f} of {self.memory / 1e9:.1f} GB are needed ({worst.stage}: {worst.name})"
        if self.fits:
            return f"fits {where} by the plan: {needed}, {self.spare:.0%} are spare"
        remedy = (
            f"fits with {self.change}" if self.change else "neither one or two keys nor more ranks would make it fit"
        )
        return f"does not fit {where} by the plan: {'; '.join((*self.problems, remedy))}"

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tokens = [stage.tokens for stage in self.stages]
        episodes = [stage.episodes for stage in self.stages]
        shares = MEASURED.get(self.card, ASSUMED)
        return {
            "fits": self.fits,
            "card": self.card,
            "ranks": self.ranks,
            "servers": self.servers,
            "judges": self.others,
            "memory_bytes": self.memory,
            "needed_bytes": self.needed_bytes,
            "spare": self.spare,
            "peak_memory_bytes": self.peak_memory_bytes,
            "host_memory_bytes": self.host_memory_bytes,
            "peak_disk_bytes": self.peak_disk_bytes,
            "steps": sum(stage.steps for stage in self.stages),
            "episodes": None if None in episodes else sum(filter(None, episodes)),
            "tokens": None if None in tokens else sum(filter(None, tokens)),
            "searches": sum(stage.searches or 0 for stage in self.stages),
            "judge_calls": sum(stage.calls for stage in self.stages),
            "judge_calls_per_step": {one.name: one.step_calls for one in self.stages if one.steps and one.step_calls},
            "seconds": self.seconds,
            "seconds_by_phase": self.seconds_by_phase,
            "threads": self.threads,
            "judge_cards": self.judge_cards,
            "downloads": dict(self.downloads),
            "assumed_utilisation": {
                "training_flops": shares.update,
                "prefill_flops": shares.prefill,
                "bandwidth": shares.decoding,
            },
            "phases": [_phase_json(phase) for phase in self.phases],
            "stages": [asdict(stage) | {"calls": stage.calls} for stage in self.stages],
            "problems": list(self.problems),
            "change": asdict(self.change) if self.change else None,
            "notes": list(self.notes),
        }


def plan_for_cards(recipe: Recipe, cards: Cards, threads: int | None = None) -> CardPlan:
    """The plan of a recipe for cards, each with a rank or with one of the recipe's servers, and `threads` that search,
    those of this machine if None. Raises SleuthError if the model's shape cannot be had."""
    ranks, servers = ranks_and_servers(recipe, cards.count)
    others = cards.count - ranks - servers
    machine = Machine(device=CUDA, memory=cards.card.memory, ranks=ranks, servers=servers, others=others)
    return _plan(recipe, machine, cards.card.name, cards.card, threads)


def plan_for_cpu(recipe: Recipe, memory: int, threads: int | None = None) -> CardPlan:
    """The plan of a recipe for one process on a CPU with `memory` bytes; no time is estimated but that of searches."""
    return _plan(recipe, Machine(device=CPU, memory=memory, ranks=1), "cpu", None, threads)


def _plan(recipe: Recipe, machine: Machine, name: str, card: Card | None, threads: int | None) -> CardPlan:
    threads = threads or os.cpu_count() or 1
    shape, note = shape_of(recipe.model) if recipe.init is None else (random_shape(recipe.stage[0]), None)
    if recipe.init is None and note is None:
        from sleuth.learn.models import read_config  # takes seconds to import
        from sleuth.training.stage_context import require_family

        if (slow := require_family(recipe, read_config(recipe.model))) is not None:
            note = f"{slow}; the plan is that of a Qwen 3 of its size"
    served = [] if card is None else list(_served(recipe, machine))
    phases = [*phases_of(recipe, shape, machine), *(phase for phase, _ in served)]
    weights = SIZES[recipe.dtype] * shape.weights
    problems = problems_of(phases, machine.memory)
    for phase, given in served:
        if phase.needed > given:
            short = (
                f"{phase.stage}: {phase.name} takes {phase.needed / 1e9:.1f} GB, and its memory is {given / 1e9:.1f} GB"
            )
            problems.setdefault(phase.stage, short)
    return CardPlan(
        card=name,
        memory=machine.memory,
        ranks=machine.ranks,
        servers=machine.servers,
        others=machine.others,
        phases=tuple(phases),
        stages=_evaluated_on_the_way(
            recipe,
            [
                stage_time(StagePlan(recipe, index, shape, machine), card, phases, threads)
                for index in range(len(recipe.stage))
            ],
        ),
        peak_disk_bytes=_disk(recipe, shape, machine),
        problems=tuple(problems.values()),
        notes=(note,) if note else (),
        change=change_that_fits(recipe, shape, machine, problems.keys()) if problems else None,
        threads=threads,
        downloads=missing_bytes(recipe, weights),
    )


def _evaluated_on_the_way(recipe: Recipe, stages: Sequence[StageTime]) -> tuple[StageTime, ...]:
    """With the seconds of the evaluations that a stage makes while it trains, as far as theirs are known."""
    seconds, timed = {stage.name: stage.seconds for stage in stages}, list(stages)
    for at, stage in enumerate(recipe.stage):
        if not isinstance(stage, TrainingRecipe) or not stage.evaluate_every:
            continue
        times = Counter(name for step in range(1, stage.last_step + 1) for name in stage.evaluates_at(step))
        known = sum(count * (seconds[name] or 0.0) for name, count in times.items())
        before = timed[at]
        many = ", ".join(f"{name} {count} times" for name, count in times.items())
        timed[at] = replace(
            before,
            seconds=None if before.seconds is None else before.seconds + known,
            purposes=before.purposes | ({"evaluations": known} if known else {}),
            notes=(*before.notes, f"{stage.name}: evaluates {many} on the way"),
        )
    return tuple(timed)


def _served(recipe: Recipe, machine: Machine) -> Iterator[tuple[Phase, int]]:
    """What each judge or teacher that the run starts holds of one of its cards, and what it is given of that."""
    count = machine.ranks + machine.servers + machine.others
    for stage in recipe.stage:
        for model in stage.launched():
            weights = served_bytes(model) // len(model.on_cards(count))
            phase = Phase(
                stage=stage.name, name=f"server of {model.model}", bytes={"weights": weights, "work": SERVER}, host={}
            )
            yield phase, parse_share(model.memory or f"{SERVER_SHARE:.0%}", machine.memory)


def _disk(recipe: Recipe, shape: ModelShape, machine: Machine) -> int:
    """Bytes of the checkpoints of all stages, with the one being written."""
    left = writing = 0
    for index, stage in recipe.stages_of(TrainingRecipe).items():
        learner = learner_of(recipe, index, shape, Machine(device=machine.device, memory=0, ranks=1))
        saves = sum(map(stage.saves_at, range(1, stage.last_step + 1)))
        plan = DiskPlan(
            weights=SIZES[recipe.dtype] * shape.weights + SLACK,
            state=state_bytes(learner),
            resumable=min(saves, stage.keep + 1),
            milestones=stage.last_step // stage.milestone_every if stage.milestone_every else 0,
        )
        left += plan.peak - plan.one
        writing = max(writing, plan.one if saves > plan.resumable else 0)
    return left + writing


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {
        "name": f"{phase.stage}: {phase.name}",
        "bytes": phase.bytes,
        "host_bytes": phase.host,
        "total": total(phase.bytes),
        "needed": phase.needed,
        "cache": None if phase.need is None else asdict(phase.need) | {"asked": phase.asked, "at_once": phase.at_once},
    }


# -- changes that make a recipe fit ------------------------------------------------------------------------------------

MORE_RANKS = (2, 4, 8, 16)
"""Numbers of ranks that are tried where no keys make a recipe fit."""
LEAST_TOKENS = 1_024
"""Smaller micro-batches are not proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a recipe's keys, `{"stage.1.cpu_offload": "true"}`, or another number of ranks."""

    keys: dict[str, str]
    ranks: int | None = None

    def __str__(self) -> str:
        keys = [f"--set {key}={value}" for key, value in self.keys.items()]
        return " ".join([*keys, *([f"--ranks {self.ranks}"] if self.ranks else [])])


def change_that_fits(recipe: Recipe, shape: ModelShape, machine: Machine, failing: Collection[str]) -> Change | None:
    """The first change of one key, then of two, then of ranks, with which every phase has room; each was tried, and the
    recipe stays valid. A key is changed in every training stage of the `failing` ones."""

    def fits(changed: Recipe, ranks: int) -> bool:
        try:
            Recipe.model_validate(changed.model_dump())
        except ValidationError:  # its keys do not go together
            return False
        return not problems_of(phases_of(changed, shape, replace(machine, ranks=ranks)), machine.memory)

    stages = [at for at, stage in recipe.stages_of(TrainingRecipe).items() if stage.name in failing]
    edits = [edit for edit in EDITS if edit(recipe, stages, machine)[1]]
    for count in (1, 2):
        for chosen in combinations(edits, count):
            changed, keys = recipe, {}
            for edit in chosen:
                changed, more = edit(changed, stages, machine)
                keys |= more
            if fits(changed, machine.ranks):
                return Change(keys=keys)
    for ranks in MORE_RANKS if machine.device.name == "cuda" else ():
        if ranks > machine.ranks and fits(recipe, ranks):
            return Change(keys={}, ranks=ranks)
    return None


Edit = Callable[[Recipe, Sequence[int], Machine], tuple[Recipe, dict[str, str]]]
"""(recipe, its stages without room, machine) -> the recipe with one key changed in these stages, and the changed keys
as `--set` takes them; none if that has no effect."""


def _with_bfloat16(recipe: Recipe, stages: Sequence[int], machine: Machine) -> tuple[Recipe, dict[str, str]]:
    keys = {} if recipe.dtype == "bfloat16" else {"dtype": "bfloat16"}
    return recipe.model_copy(update=keys), keys


def _with(key: str, value_of: Callable[[Recipe, int, TrainingRecipe], Any], *, shown: str = "") -> Edit:
    """Sets a stage's `key` to `value_of` (recipe, index, stage), unless that is what it is; the change is shown as that
    of the key below it, if one is given."""

    def edit(recipe: Recipe, stages: Sequence[int], machine: Machine) -> tuple[Recipe, dict[str, str]]:
        changed, keys = list(recipe.stage), dict[str, str]()
        for at, stage in recipe.stages_of(TrainingRecipe).items():
            value = value_of(recipe, at, stage) if at in stages else getattr(stage, key)
            if value == getattr(stage, key) or (key == "cpu_offload" and machine.device.name == "cpu"):
                continue
            changed[at] = stage.model_copy(update={key: value})
            keys[f"stage.{at}.{key}{shown and f'.{shown}'}"] = str(getattr(value, shown) if shown else value).lower()
        return recipe.model_copy(update={"stage": tuple(changed)}), keys

    return edit


def _fewer_tokens(recipe: Recipe, at: int, stage: TrainingRecipe, share: int) -> int:
    tokens = max(stage.tokens_per_micro_batch // share, LEAST_TOKENS, stage.lengths(recipe, at).limit)
    return min(tokens, stage.tokens_per_micro_batch)


EDITS: tuple[Edit, ...] = (
    _with("gradient_checkpointing", lambda recipe, at, stage: True),
    _with("tokens_per_micro_batch", partial(_fewer_tokens, share=2)),
    _with("tokens_per_micro_batch", partial(_fewer_tokens, share=4)),
    _with_bfloat16,
    _with("cpu_offload", lambda recipe, at, stage: True),
    _with("lora", lambda recipe, at, stage: stage.lora or LoraRecipe(), shown="rank"),
)
"""Those that change the result least first."""
