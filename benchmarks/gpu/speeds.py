"""The plan beside a card's file: the shares of the data sheet that its phases reached, and planned seconds over
measured ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.figures import Outcome
from benchmarks.gpu.scales import REAL, Scale, shaped
from sleuth.host.hardware import Card
from sleuth.plan.memory import CUDA, LearnerMemory, Passes
from sleuth.plan.phases import Played
from sleuth.plan.shapes import read_shape
from sleuth.plan.speed import ASSUMED, Shares, Speed
from sleuth.recipe.data import Lengths
from sleuth.recipe.training import LoraRecipe

UPDATE = re.compile(r"update of ([\d,]+) tokens")
MODELS = {
    "update": "Qwen3-0.6B",
    "even": "Qwen3-0.6B",
    "qwen3_1.7b": "Qwen3-1.7B",
    "qwen2.5_3b": "Qwen2.5-3B",
    "qwen3_4b_lora": "Qwen3-4B, adapters",
    "refiner": "Qwen3-0.6B, long prompts",
    "long": "Qwen3-0.6B, a long text",
}
"""The checks that time an update or decode steps, and what they time them of."""

Found = Mapping[str, Mapping[str, float]]
"""Check -> figure -> value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Seconds that the plan computes from its shares, and those that were measured."""

    what: str
    planned: float
    measured: float


def found_in(outcomes: Sequence[Outcome]) -> Found:
    """The figures of the last outcome of each check, but for those that are no number."""
    return {
        one.check: {figure.name: figure.value for figure in one.figures if math.isfinite(figure.value)}
        for one in outcomes
    }


def measured_shares(found: Found, card: Card) -> Shares:
    """What the phases of Qwen3-0.6B reached on a card, to two digits; what was not measured is assumed."""
    shape = passes_of(REAL).shape
    shares = {name: getattr(ASSUMED, name) for name in ("update", "prefill", "decoding", "layer")}
    if (update := _update(found, "update")) is not None:
        tokens, seconds = update
        again = recomputed(REAL, card, tokens) * shape.layer
        shares["update"] = 2 * (3 * shape.weights + again) * tokens / seconds / card.flops
    if (read := found.get("refiner", {}).get("prompts read")) is not None:
        shares["prefill"] = 2 * shape.weights * read / card.flops
    even = found.get("even", {})
    reached = [even.get("kernel: bandwidth, share of the data sheet")]
    reached += [found.get(check, {}).get("bandwidth, share of the data sheet") for check in MODELS]
    if any(reached):  # the least: prompts that siblings share are counted for each, and read once
        shares["decoding"] = min(filter(None, reached))
    if (step := even.get("kernel: 8 alone, a decode step")) is not None:
        shares["layer"] = step / 1e3 / REAL.layers
    return Shares(**{name: float(f"{share:.2g}") for name, share in shares.items()})


def compared(found: Found, card: Card) -> Iterator[Compared]:
    """Decode steps and updates of each model, and the phases of a whole step."""
    for check, model in MODELS.items():
        adapters, scale = check == "qwen3_4b_lora", scale_of(check)
        speed = Speed(card=card, passes=passes_of(scale), ranks=1)
        way = {"even": "kernel: ", "qwen3_4b_lora": "adapters: "}.get(check, "")
        figures = found.get(check, {})
        if f"{way}a decode step" in figures:
            count = round(figures.get("requests", figures.get(f"{way}requests", REAL.requests)))
            planned = speed.decode_step(count, figures[f"{way}read in a step"] * 1e9)
            yield Compared(
                what=f"{model}: decode step of {count}", planned=planned, measured=figures[f"{way}a decode step"] / 1e3
            )
        if (update := _update(found, check)) is not None:
            tokens, seconds = update
            again = recomputed(scale, card, tokens, adapters=adapters)
            planned = speed.update(learner_of(scale, adapters=adapters), tokens, again)
            yield Compared(what=f"{model}: update of {tokens:,} tokens", planned=planned, measured=seconds)
    if "rollout" in (step := found.get("step", {})):
        yield from _step(step, Speed(card=card, passes=passes_of(REAL), ranks=1))


def _step(step: Mapping[str, float], speed: Speed) -> Iterator[Compared]:
    """The phases of `recipes/search_0.6b_single_gpu.toml`, with the lengths that its episodes had."""
    prompt, whole, sampled = (
        round(step[name])
        for name in (
            "tokens of a prompt, mean",
            "tokens of an episode, mean",
            "tokens sampled by an episode, mean",
        )
    )
    lengths = Lengths(limit=REAL.context, prompt=prompt, response=whole - prompt, sampled=sampled)
    played = Played(prompts=32, samples=8, at_once=256, cache_memory=None, lengths=lengths)
    rollout = speed.generation(played, 256, 256)
    yield Compared(what="a step: rollout", planned=rollout, measured=step["rollout"])
    tokens = step["tokens computed"]
    update = speed.update(learner_of(REAL), tokens, recomputed(REAL, speed.card, tokens))
    yield Compared(what="a step: update", planned=update, measured=step["update"])


def _update(found: Found, check: str) -> tuple[int, float] | None:
    """Tokens and seconds of a check's update."""
    for name, seconds in found.get(check, {}).items():
        if (named := UPDATE.fullmatch(name)) is not None:
            return int(named[1].replace(",", "")), seconds
    return None


def scale_of(check: str) -> Scale:
    """The sizes of a check."""
    name = check.removesuffix("_lora")
    return shaped(REAL, name) if name.startswith("qwen") else REAL


def passes_of(scale: Scale) -> Passes:
    """The plan's passes of a model of this shape in bf16 on a card."""
    return Passes(shape=read_shape(scale.config().to_dict(), "model"), device=CUDA, size=2)


def recomputed(scale: Scale, card: Card, tokens: float, *, adapters: bool = False) -> int:
    """The layers whose activations have no room in a pass."""
    learner, at_once = learner_of(scale, adapters=adapters), min(scale.budget, round(tokens))
    return scale.layers - learner.kept_layers(at_once, card.memory - CUDA.libraries)


def learner_of(scale: Scale, *, adapters: bool = False) -> LearnerMemory:
    """The plan's learner of a model of this shape, as the checks set it up."""
    return LearnerMemory(
        passes=passes_of(scale),
        lora=LoraRecipe() if adapters else None,
        masters=True,
        muon=False,
        reference=False,
        teacher=None,
        checkpointed=True,
        ranks=1,
        offload=False,
    )
