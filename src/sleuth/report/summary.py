"""The head of the page: model, settings, versions and date, from the recipe and the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sleuth.answers.scorers import SCORERS
from sleuth.evaluation.paired import headline
from sleuth.report.run_files import RunFiles

Facts = list[tuple[str, str]]

STAGE_FACTS = (
    ("steps", "{} steps"),
    ("prompts_per_step", "{} prompts a step"),
    ("samples_per_prompt", "{} samples a prompt"),
    ("rows_per_step", "{} rows a step"),
    ("learning_rate", "learning rate {:g}"),
    ("data.questions", "questions {}"),
    ("data.suite", "suite {}"),
    ("data.per_set", "{} questions a set"),
    ("env.dialect", "dialect {}"),
    ("env.prompt", "prompt {}"),
    ("env.top_k", "{} results a search"),
    ("env.searches", "at most {} searches"),
    ("loss.advantage", "{} advantages"),
    ("loss.beta", "KL weight {:g}"),
)


def stage_lines(recipe: Mapping[str, Any]) -> Facts:
    """(kind, main settings) of each stage, in order."""
    return [(_title(stage), ", ".join(_facts(stage))) for stage in recipe.get("stage", ())]


def run_headline(run: RunFiles) -> str | None:
    """What the run changed, by its first evaluation and the last one in the same environment: `exact match 0.175 ->
    0.933 (+0.758 [0.72, 0.79])`. None if there are no such two that share a question; control arms, which have an
    environment of their own, are not compared."""
    stages = [stage for stage in run.recipe.get("stage", ()) if stage.get("kind") == "evaluate"]
    asked = [stage for stage in stages if stage.get("name") in run.evaluations]
    same = [stage["name"] for stage in asked if stage.get("env") == asked[0].get("env")]
    return headline(run.evaluations, same[0], same[-1]) if len(same) > 1 else None


def run_facts(run: RunFiles) -> Facts:
    """Model, seed, date and versions, as far as the files have them."""
    started = run.manifest.get("started")
    known = {
        "Model": run.recipe.get("model"),
        "Seed": run.recipe.get("seed"),
        "Started": started and str(started).replace("T", " ").replace("+00:00", " UTC"),
    }
    versions = run.manifest.get("versions", {})
    return [
        *((name, str(value)) for name, value in known.items() if value is not None),
        *((name, str(versions[name])) for name in ("sleuth", "torch", "transformers", "python") if name in versions),
    ]


def run_name(run: RunFiles) -> str:
    """The recipe's name, or the folder's."""
    return str(run.recipe.get("name") or run.folder.resolve().name)


def _title(stage: Mapping[str, Any]) -> str:
    return " ".join(dict.fromkeys(str(stage[key]) for key in ("kind", "name") if key in stage))


def _facts(stage: Mapping[str, Any]) -> list[str]:
    found = [(form, _lookup(stage, key)) for key, form in STAGE_FACTS]
    found = [(form if isinstance(value, int | float) else form.replace(":g", ""), value) for form, value in found]
    rewards = [_reward(reward) for reward in stage.get("reward", ())]
    return [form.format(value) for form, value in found if value is not None] + rewards


def _reward(reward: Mapping[str, Any]) -> str:
    """`0.5 x search_r1 answer reward (reads prompt and response with observations)`."""
    scorer, weight = str(reward.get("scorer", "")), reward.get("weight", 1.0)
    times = {0: "measured, not paid: ", 1: ""}.get(weight, f"{weight} x ")
    reads = f" (reads {SCORERS[scorer].view.label})" if scorer in SCORERS else ""
    return times + f"{scorer} {reward.get('kind', '')} reward".strip() + reads


def _lookup(table: Mapping[str, Any], dotted: str) -> Any:
    value: Any = table
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


# -- time --------------------------------------------------------------------------------------------------------------


PURPOSES = {"rollouts": "seconds_rollout", "updates": "seconds_update"}
"""Purposes whose seconds are those of the steps, with their figure in `metrics.jsonl`."""
NAMES = (*PURPOSES, "questions", "saves", "other")
"""All purposes in the order of their bars; `other` is loading, waiting and steps that a restart repeated."""
COSTS = {"asking": "questions", "saving": "saves"}
"""Purposes by their names in the manifest."""
INNER = {"searches": "seconds_searches", "judges": "seconds_judges"}
"""What rollouts and questions wait for, with its figure in `metrics.jsonl`; the plan has it beside these."""
COUNTS = {"searches": "searches", "calls": "judge_asked", "computed": "tokens_computed"}
"""What is counted, by the plan and in `metrics.jsonl`; and as the page names it."""
COUNTED = {"searches": "searches made", "calls": "calls of judges", "computed": "tokens of updates"}


class Part(NamedTuple):
    """The seconds of one purpose. `share` is that of the longest stage, the length of its bar."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """The seconds of a stage, restarts included, and what they were spent on; its peak bytes of memory, of a GPU if it
    used one; what it waited for and counted; and all of it by the plan, where it has them."""

    stage: str
    seconds: float
    parts: tuple[Part, ...]
    memory: float
    planned: Mapping[str, Any]
    inner: Mapping[str, float]
    counts: Mapping[str, float]

    def as_json(self) -> dict[str, dict[str, Any]]:
        """`{"planned": {...}, "measured": {"seconds", "memory_bytes", "purposes", "searches", ...}}`."""
        purposes = {part.name: part.seconds for part in self.parts} | dict(self.inner)
        measured = {"seconds": self.seconds, "memory_bytes": self.memory, "purposes": purposes, **self.counts}
        return {"planned": dict(self.planned), "measured": measured}

    @property
    def compared(self) -> list[tuple[str, float, float, bool]]:
        """(what, by the plan, measured, whether it is seconds) of all that was planned and measured."""
        planned, spent = dict(self.planned.get("purposes") or {}), self.as_json()["measured"]["purposes"]
        for name in {"rollouts", "questions"} & planned.keys():
            planned[name] += sum(planned.get(inner, 0.0) for inner in INNER)
        rows = [(name, planned[name], spent[name], True) for name in planned if name in spent]
        counted = [key for key in self.counts if self.planned.get(key)]
        return rows + [(COUNTED[key], self.planned[key], self.counts[key], False) for key in counted]


def stage_times(manifest: Mapping[str, Any], stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[StageTime]:
    """The times of the stages in the manifest, in their order; `stages` are their rows of metrics."""
    by_stage = {
        stage: _by_purpose(cost.get("seconds", {}), stages.get(stage, ()))
        for stage, cost in manifest.get("costs", {}).items()
    }
    totals = {stage: sum(purposes.values()) for stage, purposes in by_stage.items()}
    longest = max(totals.values(), default=0.0)
    costs, planned = manifest.get("costs", {}), manifest.get("planned", {})
    return [
        StageTime(
            stage=stage,
            seconds=totals[stage],
            parts=tuple(Part(name, spent, spent / longest) for name in NAMES if (spent := purposes[name]) > 0),
            memory=costs[stage].get("gpu_memory_bytes") or costs[stage].get("host_memory_bytes") or 0,
            planned=planned.get(stage, {}),
            inner=_sums(stages.get(stage, ()), INNER),
            counts=_sums(stages.get(stage, ()), COUNTS),
        )
        for stage, purposes in by_stage.items()
        if totals[stage] > 0
    ]


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _by_purpose(seconds: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The seconds of every purpose. A stage under way has no total yet: then nothing is known of the rest."""
    purposes = dict.fromkeys(PURPOSES, 0.0) | _sums(rows, PURPOSES)
    purposes |= {name: seconds.get(cost, 0.0) for cost, name in COSTS.items()}
    return purposes | {"other": max(0.0, seconds.get("total", 0.0) - sum(purposes.values()))}


def _sums(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, str]) -> dict[str, float]:
    """The sum of each figure that some row has."""
    found = {name: [row[figure] or 0.0 for row in rows if figure in row] for name, figure in figures.items()}
    return {name: sum(values) for name, values in found.items() if values}
