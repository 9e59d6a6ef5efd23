"""Whether a model's thoughts are of use: the same places with its own thought, without one, with empty phrases, with
foreign thoughts and with a teacher's, and what each makes of the true suffix.

A wrong thought that harms shows that thoughts are read. That they are written well shows only where the model's own
beat an empty one and phrases that fit any text: the certificate is about that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.data.documents import read_documents
from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.certificate import certificate, told, write_certificate
from sleuth.evaluation.counterfactual import suffix_row
from sleuth.evaluation.named_model import NamedModel, load_named
from sleuth.evaluation.thought_arms import GENERIC, Arms, Stories, arms_of, document_of, prefix_of, suffix_of
from sleuth.factories import (
    JudgePool,
    Spot,
    ThoughtSetting,
    judge_of_suffixes,
    require_available,
    require_endings,
    spots_of,
    thought_setting,
    thought_tokens,
)
from sleuth.learn.logprobs import row_logprobs
from sleuth.metrics.intervals import Measured, bootstrap_mean, bootstrap_ratio, share
from sleuth.metrics.significance import clusters_for_difference
from sleuth.recipe.evaluation import ProbeRecipe
from sleuth.recipe.judges import EndingJudgeRecipe, HttpJudgeRecipe
from sleuth.render import Renderer
from sleuth.rewards.thoughts import Asks, is_yes
from sleuth.rollout import Rollout
from sleuth.runs.eval_file import read_eval, write_eval
from sleuth.stage_context import StageContext, StageInputs
from sleuth.types import Engine, Judge, Sampling, SleuthError, Task

BUDGET = 4_096
"""Distinct tokens of one pass."""
THOUGHT_ALONE = {"suffix_tokens": 0, "stops": (), "close": "inserted"}
"""Thoughts are sampled once and stand in several arms; what is earned is earned in training."""
TURN = 2
"""The place of suffix draws among those of the probe: arms share them, sample by sample."""


def require_inputs(stage: ProbeRecipe, inputs: StageInputs) -> list[Task]:
    """As `require_places`, of a stage in a recipe."""
    return require_places(stage, inputs.tokenizer, inputs.positions)


def run(stage: ProbeRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json` and the certificate, unless they exist for this model; returns the model unchanged."""
    file = context.folder.eval / f"{stage.name}.json"
    if read_eval(file, model=context.model) is not None:
        return Path(context.model)
    thinker = load_named(context.model, context.recipe)
    with JudgePool(context.folder.verdicts) as judge_pool, context.folder.costing(stage.name, "asking"):
        contents = {"name": stage.name, **probed(stage, thinker, judge_pool, seed=context.recipe.seed)}
    context.folder.say(f"{stage.name}: {told(contents)}")
    context.folder.backlog.write(f"the probe {stage.name}", lambda: write_eval(file, contents))
    context.folder.backlog.write(f"the certificate {stage.name}", lambda: write_certificate(context.model, contents))
    return Path(context.model)


def probed(stage: ProbeRecipe, thinker: NamedModel, judge_pool: JudgePool, *, seed: int = 0) -> dict[str, Any]:
    """The contents of a probe's file: every figure with its interval over documents, what they would have needed, the
    certificate, and a record of each place.

    `gain_ARM` is how much likelier an arm makes a token of the true suffix than an empty thought does, in nats,
    `blank_nll` the most that can be gained, and `gained_share` how much of it the model's own gain; `over_ARM` is the
    model's own less that arm, place by place. With a judge `right_ARM` is the share of an arm's written suffixes that
    come to the true one, and `right_over_ARM` the paired difference. Raises SleuthError where there are not two
    documents to exchange thoughts between.
    """
    spots, setting, context = places_to_probe(stage, thinker.tokenizer, thinker.holds)
    engine = LocalEngine(thinker.model, thinker.tokenizer, slots=stage.slots, context=context)
    renderer = Renderer(thinker.tokenizer)
    rollout = Rollout(engine=engine, renderer=renderer, context=context, temperature=stage.temperature, key=(seed,))
    alone = thought_setting(stage.env.model_copy(update=THOUGHT_ALONE), thinker.tokenizer)
    arms = arms_of(rollout, alone, spots, samples=stage.samples, renderer=renderer)
    documents = [document_of(spot) for spot in spots]
    nlls = {name: _nlls(thinker.model, spots, of_arm) for name, of_arm in arms.stories.items()}
    judge = judge_of_suffixes(stage.judge, judge_pool) if stage.judge is not None else None
    rights = {} if judge is None else asyncio.run(_rights(stage, setting, engine, spots, arms, judge, seed))
    differences = _differences(nlls, rights)
    shares = {f"right_{name}": _means(values) for name, values in rights.items()}
    by_place = {"blank_nll": _means(nlls["blank"]), **differences, **shares}
    figures = _figures(by_place, [*shares], documents)
    needed = {name: clusters_for_difference(values, documents) for name, values in differences.items()}
    return {
        "model": thinker.name,
        **{name: figure.as_json() for name, figure in figures.items()},
        "documents_needed": {
            name: count for name, count in needed.items() if name.startswith(("over_", "right_over_"))
        },
        "certificate": certificate(stage, spots, figures, needed, seed),
        "records": [
            _record(at, spot, arms, nlls, rights) | {"figures": {name: values[at] for name, values in by_place.items()}}
            for at, spot in enumerate(spots)
        ],
    }


def places_to_probe(
    stage: ProbeRecipe, tokenizer: PreTrainedTokenizerFast, holds: int
) -> tuple[list[Spot], ThoughtSetting, int]:
    """Where to think, in which setting, and the longest sequence of any arm. Raises SleuthError where a model that
    `holds` so many tokens cannot hold that, and where there is no other document to take a foreign thought from."""
    spots, setting, renderer = (
        spots_of(stage.data, tokenizer),
        thought_setting(stage.env, tokenizer),
        Renderer(tokenizer),
    )
    if len({document_of(spot) for spot in spots}) < 2:
        raise SleuthError(f"{stage.data.texts}: one document, and no other to take a foreign thought from; give more")
    given = [len(thought_tokens(thought, renderer)) for thought in GENERIC]
    given += [len(thought_tokens(spot.teacher, renderer)) for spot in spots if spot.teacher is not None]
    tags = len(thought_tokens("", renderer))
    thought, prefix = max(*given, tags + stage.env.thought_tokens), max(len(prefix_of(spot)) for spot in spots)
    suffix = max(stage.env.suffix_tokens, *(len(suffix_of(spot)) for spot in spots))
    if prefix + thought + suffix > holds:
        raise SleuthError(
            f"prefixes of {prefix} tokens, thoughts of {thought} and suffixes of {suffix} are more than the {holds} "
            "positions of the model; lower data.prefix_tokens, data.suffix_tokens or env.thought_tokens"
        )
    return spots, setting, prefix + thought + suffix


def require_places(stage: ProbeRecipe, tokenizer: PreTrainedTokenizerFast | None, holds: int) -> list[Task]:
    """The tasks of a stage. Raises SleuthError where it could not be made; a tokenizer that does not exist yet cuts
    nothing, and then the first document is read."""
    if isinstance(stage.judge, HttpJudgeRecipe):
        require_available(stage.judge)
    if tokenizer is None:
        next(read_documents(stage.data.texts), None)
        return []
    tasks = [spot.task for spot in places_to_probe(stage, tokenizer, holds)[0]]
    if isinstance(stage.judge, EndingJudgeRecipe):
        require_endings(tasks)
    return tasks


# -- measuring ---------------------------------------------------------------------------------------------------------

ByPlace = list[list[float | None]]
"""Sample by sample at each place; None where there is nothing to read, or no verdict."""


def _nlls(model: PreTrainedModel, spots: Sequence[Spot], stories: Sequence[Stories]) -> ByPlace:
    """Nats a token of the true suffix behind each story."""
    rows = [
        suffix_row(story, suffix_of(spot))
        for spot, of_place in zip(spots, stories, strict=True)
        for story in of_place
        if story is not None
    ]
    values = iter(row_logprobs(model, rows, budget=BUDGET) if rows else [])
    return [
        [None if story is None else -fmean(next(values)[len(story) :]) for story in of_place] for of_place in stories
    ]


async def _rights(
    stage: ProbeRecipe,
    setting: ThoughtSetting,
    engine: Engine,
    spots: Sequence[Spot],
    arms: Arms,
    judge: tuple[Judge, Asks],
    seed: int,
) -> dict[str, ByPlace]:
    """Whether the suffix that is written behind each story comes to the true one. Every arm has the same draws: of
    arms with fewer stories than samples they take turns."""

    async def one(place: int, sample: int, stories: Stories) -> float | None:
        story = stories[(place + sample) % len(stories)] if len(stories) < stage.samples else stories[sample]
        if story is None:
            return None
        limits = Sampling(
            max_tokens=setting.limits.suffix_tokens,
            temperature=stage.temperature,
            stops=setting.limits.stops,
            key=(seed, TURN, place, sample),
        )
        written = await engine.complete(story, limits)
        asked, asks = judge
        [verdict] = await asked.judge([asks(spots[place].task, written.text)])
        return is_yes(verdict)

    async def arm(stories: Sequence[Stories]) -> ByPlace:
        asked = [one(at, sample, of_place) for at, of_place in enumerate(stories) for sample in range(stage.samples)]
        values = iter(await asyncio.gather(*asked))
        return [[next(values) for _ in range(stage.samples)] for _ in stories]

    return {name: await arm(stories) for name, stories in arms.stories.items()}


def _means(values: ByPlace) -> list[float | None]:
    """By place, over what is there."""
    known = [[value for value in of_place if value is not None] for of_place in values]
    return [fmean(of_place) if of_place else None for of_place in known]


def _less(one: Sequence[float | None], other: Sequence[float | None]) -> list[float | None]:
    pairs = zip(one, other, strict=True)
    return [None if left is None or right is None else left - right for left, right in pairs]


def _differences(nlls: Mapping[str, ByPlace], rights: Mapping[str, ByPlace]) -> dict[str, list[float | None]]:
    """By figure and place: what each arm gained, and by how much the model's own gained more."""
    means, shares = ({name: _means(values) for name, values in of.items()} for of in (nlls, rights))
    compared = [name for name in means if name != "sampled"]
    found = {f"gain_{name}": _less(means["blank"], values) for name, values in means.items() if name != "blank"}
    found |= {f"over_{name}": _less(means[name], means["sampled"]) for name in compared}
    if shares:
        found |= {f"right_over_{name}": _less(shares["sampled"], shares[name]) for name in compared}
    return found


def _figures(
    by_place: Mapping[str, Sequence[float | None]], shares: Sequence[str], documents: Sequence[str]
) -> dict[str, Measured]:
    figures = {
        name: (share if name in shares else bootstrap_mean)(values, documents) for name, values in by_place.items()
    }
    figures["gained_share"] = bootstrap_ratio(by_place["gain_sampled"], by_place["blank_nll"], documents)
    return {name: figure for name, figure in figures.items() if figure.value is not None}


def _record(
    at: int, spot: Spot, arms: Arms, nlls: Mapping[str, ByPlace], rights: Mapping[str, ByPlace]
) -> dict[str, Any]:
    stories = [story for story in arms.stories["sampled"][at] if story is not None]
    return {
        "id": spot.task.id,
        "document": document_of(spot),
        "kind": spot.task.kind,
        "reference": spot.task.reference,
        "thoughts": list(arms.thoughts[at]),
        "teacher": spot.teacher,
        "nll": {name: values[at] for name, values in nlls.items()},
        **({"right": {name: values[at] for name, values in rights.items()}} if rights else {}),
        "tokens": sum(len(story) - len(prefix_of(spot)) for story in stories),
    }
