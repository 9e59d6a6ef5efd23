"""Measures whether a model's thoughts help: how likely the true suffix is after its own thought, an empty one, generic
phrases, thoughts of other texts, and a teacher's.

If a wrong thought harms, thoughts are read. They are written well only if the model's own beat an empty one and generic
phrases, which is what the certificate states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth import __version__
from sleuth.answers.factory import judges_in, require_endings
from sleuth.data.questions import questions_hash
from sleuth.evaluation.counterfactual import suffix_row
from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.intervals import Measured, bootstrap_mean, bootstrap_ratio, minus, share
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.judges.factory import JudgePool, require_available
from sleuth.learn.logprobs import row_logprobs
from sleuth.learn.policy import TokenBudget
from sleuth.ranks import Ranks
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.think.suffix_reward import CaseBuilder, is_yes, judge_of_suffixes
from sleuth.think.tables import ProbeRecipe
from sleuth.think.thought_arms import GENERIC, Arms, Contexts, build_arms
from sleuth.think.thought_rows import held_out_figures
from sleuth.think.thoughts import Spot, ThoughtSetting, require_fit, spots_of, thought_setting, thought_tokens
from sleuth.training.evaluate_stage import model_to_measure, store_eval, stored_eval
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Engine, Judge, Sampling, SleuthError, Task

BUDGET = 4_096
"""Distinct tokens per forward pass."""
THOUGHT_ONLY = {"suffix_tokens": 0, "stops": (), "close": "inserted"}
"""Changes of the environment: thoughts are sampled without suffixes, since several arms use them, and closed if the
model did not close them."""
SUFFIX_KEY = 2
"""Separates the sampling keys of suffixes from those of thoughts; all arms share them, sample by sample."""


def require_inputs(stage: ProbeRecipe, inputs: StageInputs) -> list[Task]:
    """As `require_spots`, for a stage of a recipe."""
    if inputs.tokenizer is not None and stage.cache_memory is not None:
        inputs.require_cache(stage, probe_inputs(stage, inputs.tokenizer, inputs.positions)[-1])
    return require_spots(stage, inputs.tokenizer, inputs.positions)


def run(stage: ProbeRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json`, unless it exists for this model; returns the model unchanged."""
    if stored_eval(context, stage.name) is not None:
        return Path(context.model)
    thinker, judges = model_to_measure(context), JudgePool(context.folder.verdicts, ranks=context.ranks)
    with judges as judge_pool, context.folder.costing(stage.name, "asking"):
        budget = TokenBudget(BUDGET, context.folder.say)
        found = probe_thoughts(stage, thinker, judge_pool, seed=context.recipe.seed, budget=budget)
        contents = {"name": stage.name, **found}
    context.folder.say(f"{stage.name}: {verdict_line(contents)}")
    store_eval(context, stage.name, contents, "probe")
    return Path(context.model)


def probe_thoughts(
    stage: ProbeRecipe,
    thinker: NamedModel,
    judge_pool: JudgePool,
    *,
    seed: int = 0,
    budget: TokenBudget | None = None,
) -> dict[str, Any]:
    """The contents of a probe's file: every figure with its interval over documents, the certificate, and a record of
    each spot. Suffixes are scored within `budget`.

    `gain_ARM` is how much likelier an arm makes a token of the true suffix than an empty thought does, in nats,
    `blank_nll` the largest possible gain, and `gained_share` the share of it that the model's own thoughts gain;
    `over_ARM` is the gain of the model's own minus that arm's, paired by spot. With a judge, `right_ARM` is the share
    of an arm's sampled suffixes that are equivalent to the true one, and `right_over_ARM` the paired difference.
    `thought_tokens` is the length of the model's own thoughts with their tags. With `held_out` there are those of
    `thought_rows.thought_figures`. Raises SleuthError if all texts are of one document, so that thoughts cannot be
    swapped.
    """
    require_accurate(judges_in([stage], "stage"), judge_pool)
    spots, setting, context = probe_inputs(stage, thinker.tokenizer, thinker.max_positions)
    renderer = Renderer(thinker.tokenizer)
    thought_only = thought_setting(stage.env.model_copy(update=THOUGHT_ONLY), thinker.tokenizer)
    judge = judge_of_suffixes(stage.judge, judge_pool) if stage.judge is not None else None
    with thinker.engine(stage, context) as engine:
        rollout = Rollout(engine=engine, renderer=renderer, context=context, temperature=stage.temperature, key=(seed,))
        arms = build_arms(rollout, thought_only, spots, samples=stage.samples, renderer=renderer, ranks=thinker.ranks)
        rights = {} if judge is None else _rights(stage, setting, engine, spots, arms, judge, seed, thinker.ranks)
    documents = [spot.document for spot in spots]
    budget = budget or TokenBudget(BUDGET)
    nlls = {name: _nlls(thinker, spots, contexts, budget) for name, contexts in arms.contexts.items()}
    differences = _differences(nlls, rights)
    shares = {f"right_{name}": _means(values) for name, values in rights.items()}
    lengths = [_lengths(spot, own) for spot, own in zip(spots, arms.contexts["sampled"], strict=True)]
    by_spot = {"blank_nll": _means(nlls["blank"]), **differences, **shares, "thought_tokens": [*map(fmean, lengths)]}
    figures = {
        name: (share if name in shares else bootstrap_mean)(values, documents) for name, values in by_spot.items()
    }
    figures["gained_share"] = bootstrap_ratio(by_spot["gain_sampled"], by_spot["blank_nll"], documents)
    if (rows := stage.held_out) is not None:
        figures |= held_out_figures(rows, rows.documents(), thinker.model, renderer, budget, thinker.ranks)
    figures = {name: figure for name, figure in figures.items() if figure.value is not None}
    records = [
        {
            "id": spot.task.id,
            "document": spot.document,
            "kind": spot.task.kind,
            "reference": spot.task.reference,
            "thoughts": list(arms.thoughts[at]),
            "teacher": spot.teacher,
            "nll": {name: values[at] for name, values in nlls.items()},
            **({"right": {name: values[at] for name, values in rights.items()}} if rights else {}),
            "tokens": sum(lengths[at]),
            "figures": {name: values[at] for name, values in by_spot.items()},
        }
        for at, spot in enumerate(spots)
    ]
    return {
        "model": thinker.name,
        **{name: figure.as_json() for name, figure in figures.items()},
        "certificate": certificate(stage, spots, figures, seed),
        "records": records,
    }


def probe_inputs(
    stage: ProbeRecipe, tokenizer: PreTrainedTokenizerFast, positions: int
) -> tuple[list[Spot], ThoughtSetting, int]:
    """The spots, their setting, and the length in tokens of the longest sequence of any arm. Raises SleuthError if that
    is more than the model's `positions`, or if there is only one document."""
    spots, renderer = spots_of(stage.data, tokenizer), Renderer(tokenizer)
    setting = thought_setting(stage.env, tokenizer)
    if len({spot.document for spot in spots}) < 2:
        raise SleuthError(f"{stage.data.texts}: only one document; swapping thoughts needs two or more")
    given = [*GENERIC, *(spot.teacher for spot in spots if spot.teacher is not None)]
    thought = max(
        len(thought_tokens("", renderer)) + stage.env.thought_tokens,
        *(len(thought_tokens(text, renderer)) for text in given),
    )
    return spots, setting, require_fit(spots, positions, thought=thought, suffix=stage.env.suffix_tokens)


def require_spots(stage: ProbeRecipe, tokenizer: PreTrainedTokenizerFast | None, positions: int) -> list[Task]:
    """The tasks of a stage. Raises SleuthError if they do not fit the model or cannot be judged. Without a tokenizer
    (the model does not exist yet) only the first document is read."""
    for judge in stage.judges():
        require_available(judge)
    if tokenizer is None:
        return stage.data.tasks(None)
    if (rows := stage.held_out) is not None and rows.documents() and rows.row_tokens > positions:
        raise SleuthError(
            f"held_out.row_tokens = {rows.row_tokens} is more than the {positions} positions of the model"
        )
    tasks = [spot.task for spot in probe_inputs(stage, tokenizer, positions)[0]]
    require_endings(stage.judges(), tasks)
    return tasks


SpotValues = list[list[float | None]]
"""By spot and sample; None where the arm has no thought, or there is no verdict."""


def _nlls(thinker: NamedModel, spots: Sequence[Spot], contexts: Sequence[Contexts], budget: TokenBudget) -> SpotValues:
    """Nats per token of the true suffix after each context."""
    rows = [
        suffix_row(context, spot.suffix)
        for spot, samples in zip(spots, contexts, strict=True)
        for context in samples
        if context is not None
    ]
    dealt = partial(thinker.ranks.dealt, rows)
    logprobs = iter(budget.run(lambda tokens: dealt(lambda mine, _: row_logprobs(thinker.model, mine, budget=tokens))))
    return [
        [None if context is None else -fmean(next(logprobs)[len(context) :]) for context in samples]
        for samples in contexts
    ]


def _rights(
    stage: ProbeRecipe,
    setting: ThoughtSetting,
    engine: Engine,
    spots: Sequence[Spot],
    arms: Arms,
    judge: tuple[Judge, CaseBuilder],
    seed: int,
    ranks: Ranks,
) -> dict[str, SpotValues]:
    """By arm, whether the suffix sampled after each context is equivalent to the true one. All arms have the same
    draws; those with fewer contexts than samples repeat them in turn. Each rank takes a share of the spots."""
    suffix_judge, case_of = judge

    async def is_right(at: int, sample: int, contexts: Contexts) -> float | None:
        context = contexts[(at + sample) % len(contexts)] if len(contexts) < stage.samples else contexts[sample]
        if context is None:
            return None
        limits = Sampling(
            max_tokens=setting.limits.suffix_tokens,
            temperature=stage.temperature,
            stops=setting.limits.stops,
            key=(seed, SUFFIX_KEY, at, sample),
        )
        suffix = await engine.complete(context, limits)
        [verdict] = await suffix_judge.judge([case_of(spots[at].task, suffix.text)])
        return is_yes(verdict)

    async def spots_rights(arm: Sequence[Contexts], first: int) -> SpotValues:
        of_spots = (
            asyncio.gather(*(is_right(at, sample, contexts) for sample in range(stage.samples)))
            for at, contexts in enumerate(arm, first)
        )
        return await asyncio.gather(*of_spots)

    return {
        name: ranks.dealt(contexts, lambda mine, first: asyncio.run(spots_rights(mine, first)))
        for name, contexts in arms.contexts.items()
    }


def _means(values: SpotValues) -> list[float | None]:
    """The mean of each spot's known values; None where there is none."""
    known = [[value for value in samples if value is not None] for samples in values]
    return [fmean(samples) if samples else None for samples in known]


def _differences(nlls: Mapping[str, SpotValues], rights: Mapping[str, SpotValues]) -> dict[str, list[float | None]]:
    """By figure and spot: the gain of each arm, and that of the model's own thoughts minus it."""
    means, shares = ({name: _means(values) for name, values in of.items()} for of in (nlls, rights))
    compared = [name for name in means if name != "sampled"]
    differences = {f"gain_{name}": minus(means["blank"], values) for name, values in means.items() if name != "blank"}
    differences |= {f"over_{name}": minus(means[name], means["sampled"]) for name in compared}
    if shares:
        differences |= {f"right_over_{name}": minus(shares["sampled"], shares[name]) for name in compared}
    return differences


def _lengths(spot: Spot, contexts: Contexts) -> list[int]:
    """The tokens of each thought, with its tags."""
    return [len(context) - len(spot.prefix) for context in contexts if context is not None]


# -- the certificate ---------------------------------------------------------------------------------------------------

CONTROLS = {
    "blank": "an empty one",
    "generic": "phrases that fit any text",
    "swapped": "thoughts of other texts",
}
"""What a useful thought has to beat, in words. `swapped` is for models that never saw an empty thought: any other beats
it, and only a thought about this text gains more here than elsewhere."""


def certificate(
    stage: ProbeRecipe, spots: Sequence[Spot], figures: Mapping[str, Measured], seed: int
) -> dict[str, Any]:
    """The certificate in a probe's file: the verdict, its figures, and the settings and texts of the probe."""
    over = {name: figures[f"over_{name}"] for name in (*CONTROLS, "teacher") if f"over_{name}" in figures}
    passes, claim = verdict(over)
    return {
        "passes": passes,
        "claim": claim,
        **{f"over_{name}": figure.as_json() for name, figure in over.items()},
        "texts_sha256": questions_hash([spot.task for spot in spots]),
        "samples": stage.samples,
        "temperature": stage.temperature,
        "thought_tokens": stage.env.thought_tokens,
        "seed": seed,
        "sleuth_version": __version__,
    }


def verdict(over: Mapping[str, Measured]) -> tuple[bool, str]:
    """Whether the whole interval of a model's gain over each control is above 0, and the claim in words. A control that
    was not measured is not beaten."""
    lost = [words for name, words in CONTROLS.items() if name not in over or over[name].side != 1]
    *first, last = lost or CONTROLS.values()
    controls = " and ".join(filter(None, (", ".join(first), last)))
    claim = f"its own thoughts {'are not shown to beat' if lost else 'beat'} {controls}"
    return not lost, f"{claim}, by what they make of the true suffix, on {over['blank'].n} documents"


def verdict_line(contents: Mapping[str, Any]) -> str:
    """The verdict of a probe's file in one line."""
    certified = contents["certificate"]
    over = ", ".join(
        f"over {name} {Measured(**contents[f'over_{name}']).formatted()}"
        for name in CONTROLS
        if f"over_{name}" in contents
    )
    return f"{'PASS' if certified['passes'] else 'no certificate'}: {certified['claim']} ({over} nats a token)"
