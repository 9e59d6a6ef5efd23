"""The reward gate: what a model's thoughts earn before they are trained by that reward, and whether to train at all.

Groups whose scores are all equal teach nothing, and missing scores bias those that are left. The gate plays the
episodes of the rewarded stage on a fixed set of prefixes, without an update. Its rule is that of the release code of
the small reproduction of arXiv:2601.21343: at most 5 % are invalid, and at most half of the groups are without signal.
Departures: a group counts once and there are intervals, over documents; a missing verdict is invalid, and never a vote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.answers.factory import judges_in, require_endings, reward_of
from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.intervals import UNMEASURED, Measured, bootstrap_mean, share
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.judges.factory import JudgePool, require_available
from sleuth.learn.losses import has_signal
from sleuth.learn.policy import TokenBudget
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.think.env import thinking_of
from sleuth.think.tables import GateRecipe
from sleuth.think.thought_gain import GainScorer, gain_in
from sleuth.think.thoughts import Spot, ThoughtSetting, require_fit, spots_of, thought_setting
from sleuth.training.evaluate_stage import model_to_measure, store_eval, stored_eval
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.training.step_metrics import values_of
from sleuth.types import Group, StoppedByRule, Task

SCORED_TOKENS = 4_096
"""Distinct tokens of a forward pass that computes gains."""
MISSING, NO_SIGNAL = "missing", "no_signal"
LIMITED = {MISSING: "of the scores are missing", NO_SIGNAL: "of the groups are without signal"}
"""The figures that the rule limits, in words."""
LIMITS = {MISSING: "max_missing_fraction", NO_SIGNAL: "max_no_signal_fraction"}
"""The keys of their limits."""
SHARES = (NO_SIGNAL, MISSING, "closed")


def require_inputs(stage: GateRecipe, inputs: StageInputs) -> list[Task]:
    """The tasks of a stage. Raises SleuthError if they do not fit the model or cannot be judged. Without a tokenizer
    (the model does not exist yet) nothing is read."""
    for judge in stage.judges():
        require_available(judge)
    if inputs.tokenizer is None:
        return []
    spots = spots_of(stage.data, inputs.tokenizer)
    context = _context(spots, thought_setting(stage.env, inputs.tokenizer), inputs.positions)
    inputs.require_cache(stage, context)
    tasks = [spot.task for spot in spots]
    require_endings(stage.judges(), tasks)
    return tasks


def run(stage: GateRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json` and the verdict in the manifest, unless they exist for this model; returns the model
    unchanged."""
    if stored_eval(context, stage.name) is not None:
        return Path(context.model)
    with JudgePool(context.folder.verdicts, ranks=context.ranks) as judge_pool:
        # a gate that an absent judge decides would stay missed
        require_accurate(judges_in(stage.reward), judge_pool, context.folder.say)
        thinker = model_to_measure(context)
        with context.folder.costing(stage.name, "asking"):
            budget = TokenBudget(SCORED_TOKENS, context.folder.say)
            measured = measure_gate(stage, thinker, judge_pool, seed=context.recipe.seed, budget=budget)
    gate = measured["gate"]
    context.folder.say(f"{stage.name}: {'PASS' if gate['passes'] else 'MISSED'}: {gate['claim']}")
    context.folder.manifest.record("gates", dict(gate), stage=stage.name)
    store_eval(context, stage.name, measured, "gate")
    return Path(context.model)


def require_passed(stage: GateRecipe, context: StageContext) -> None:
    """Raises StoppedByRule if the gate was missed and a later stage would train; what was done is kept. What was
    measured is held to the limits that the recipe has now, so that the run goes on with wider ones."""
    gate = context.folder.manifest.read().get("gates", {}).get(stage.name)
    later = [one.name for one in context.recipe.stage[context.index + 1 :] if one.trains]
    if gate is None or not later:
        return
    limits = {name: getattr(stage, key) for name, key in LIMITS.items()}
    if gate["limits"] != limits and (measured := stored_eval(context, stage.name)) is not None:
        figures = {name: Measured(**measured[name]) if name in measured else UNMEASURED for name in LIMITS}
        gate = verdict(figures, limits, len(measured["records"]))
        context.folder.say(f"{stage.name}, with other limits: {gate['claim']}")
        context.folder.manifest.record("gates", gate, stage=stage.name)
    if gate["passes"]:
        return
    context.folder.require_written()
    wider = " and ".join(f"--set {stage.name}.{key}=1.0" for key in LIMITS.values())
    raise StoppedByRule(
        f"{context.folder.path}: stopped at the gate {stage.name}: {gate['claim']}, so {later[0]} is not trained; all "
        f"figures are in {context.folder.eval / f'{stage.name}.json'}, and the model is {context.model}; the same "
        f"command with {wider} trains it all the same"
    )


def measure_gate(
    stage: GateRecipe, thinker: NamedModel, judge_pool: JudgePool, *, seed: int, budget: TokenBudget
) -> dict[str, Any]:
    """The contents of a gate's file: its figures with their intervals over documents, the verdict as `gate`, and a
    record of each prefix.

    `reward_mean` is over the scores that are known, `no_signal` the share of groups whose known scores are all equal,
    `missing` the share of scores that are missing, `closed` that of thoughts that the model closed itself, and
    `thought_tokens` their mean length. The weights of the model itself compute gains.
    """
    spots = spots_of(stage.data, thinker.tokenizer)
    setting = thought_setting(stage.env, thinker.tokenizer)
    context = _context(spots, setting, thinker.max_positions)
    reward = reward_of(stage.reward, setting.dialect, thinker.tokenizer, judge_pool)
    tasks = [spot.task for spot in spots]
    with thinker.engine(stage, context) as engine:
        rollout = Rollout(
            engine=engine,
            renderer=Renderer(thinker.tokenizer),
            context=context,
            temperature=stage.temperature,
            key=(seed,),
        )
        play = partial(rollout.groups, make_env=setting.env, samples=stage.samples, reward=reward)
        groups = thinker.ranks.dealt(tasks, lambda mine, at: asyncio.run(play(mine, first_prompt=at)))
    if (gain := gain_in(stage.reward)) is not None:
        scorer = GainScorer(gain, thinker.model, (setting.opening_tag, setting.closing_tag))
        score = partial(scorer.score, groups, ranks=thinker.ranks)
        groups, _ = budget.run(lambda tokens: score(budget=tokens))
    records = [_record(group, setting.closing_tag.text) for group in groups]
    documents = [spot.document for spot in spots]
    figures = {
        name: (share if name in SHARES else bootstrap_mean)([one["figures"][name] for one in records], documents)
        for name in records[0]["figures"]
    }
    limits = {name: getattr(stage, key) for name, key in LIMITS.items()}
    return {
        "model": thinker.name,
        **{name: figure.as_json() for name, figure in figures.items() if figure.value is not None},
        "gate": verdict(figures, limits, len(groups)),
        "samples": stage.samples,
        "figures_of_judge": judge_pool.figures(thinker.ranks),
        "records": records,
    }


def verdict(figures: Mapping[str, Measured], limits: Mapping[str, float], groups: int) -> dict[str, Any]:
    """Whether each limited figure is at most its limit, and the claim in words. One that was not measured misses.

    `verdict({"missing": 0.0, "no_signal": 0.75}, {"missing": 0.05, "no_signal": 0.5}, 64)["claim"]` is "75.0 % of the
    groups are without signal (0.63 to 0.84 of 64), and at most 50 % may be".
    """
    missed = [name for name, limit in limits.items() if (value := figures[name].value) is None or value > limit]
    claims = []
    for name in missed or limits:
        found = figures[name]
        claims.append(
            f"it is not known which share {LIMITED[name]}"
            if found.value is None
            else f"{found.value:.1%} {LIMITED[name]} ({found.low:.2f} to {found.high:.2f} of {groups} groups), and at "
            f"most {limits[name]:.0%} may be"
        )
    return {"passes": not missed, "claim": "; ".join(claims), "limits": dict(limits)}


def _record(group: Group, closing: str) -> dict[str, Any]:
    """What a prefix was played to, and its figures; None for what its missing scores leave unknown."""
    values = values_of(group)
    known = [value for value in values if value is not None]
    thoughts = [thinking_of(episode.trajectory, closing) for episode in group.episodes]
    segments = [segment for episode in group.episodes for segment in episode.trajectory.segments]
    return {
        "id": group.task.id,
        "document": group.task.required_continuation.document,
        "reference": group.task.reference,
        "thoughts": [one.thought.text for one in thoughts],
        "scores": values,
        "notes": [score.note for score in group.scores],
        "figures": {
            "reward_mean": fmean(known) if known else None,
            NO_SIGNAL: float(not has_signal(values)) if len(known) > 1 else None,
            MISSING: 1 - len(known) / len(values),
            "closed": fmean(one.closed_by == "policy" for one in thoughts),
            "thought_tokens": fmean(len(one.thought.tokens) for one in thoughts),
        },
        "tokens": sum(len(segment.tokens) for segment in segments if segment.author == "policy"),
    }


def _context(spots: Sequence[Spot], setting: ThoughtSetting, positions: int) -> int:
    """Tokens of the longest episode, or of a thought with its true suffix."""
    return require_fit(spots, positions, thought=len(setting.opening_tag.tokens or ()) + setting.longest_answer)
