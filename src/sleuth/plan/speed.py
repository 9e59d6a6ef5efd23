"""Seconds of a run on cards, from their data sheets and the shares of them that were measured, or are assumed: as if
nothing were done while something else is, and without the first compilation of kernels.

Searches are counted with measured scans; judges and teachers by the arithmetic of decoding, as if each call read the
whole episode and wrote half of its limit. Nothing is measured here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sleuth.data.hub import HubLocation
from sleuth.host.hardware import Card
from sleuth.plan.memory import SIZES, LearnerMemory, Passes
from sleuth.plan.phases import SERVER, SERVER_SHARE, Phase, Played, StagePlan, played_by
from sleuth.plan.shapes import shape_of
from sleuth.recipe import EvaluateRecipe, Recipe, TrainingRecipe
from sleuth.recipe.judges import ServedModelRecipe
from sleuth.recipe.rewards import AnswerSize, ModelCalls
from sleuth.recipe.stage import StageFields
from sleuth.retrieval.index_card import expected_card, is_index
from sleuth.types import SleuthError

RAGGED = 1.5
"""Decode steps, over those of sequences that all end together."""
START, DISK, NETWORK = 60.0, 1e9, 1e8
"""Assumed: seconds in which a server starts, beside reading its weights (vLLM took 39 to 76 on CPUs), and bytes a
second of a disk, and of a download."""
INSTRUCTIONS, KEPT = 400, 100_000
"""Tokens around what a judge reads, and bytes of a token's keys and values in a served model (Qwen3-4B: 147 kB)."""
OWN_CRITERIA = 5
"""Criteria of a row, where it has its own: as many as the rows of the published refiners have at most."""
CLAIMS, CASES = 5, 3
"""Claims of an answer, and cases of a claim with two ids: both together, and each alone."""
SIZE = AnswerSize(own=OWN_CRITERIA, cited=CLAIMS * CASES)
_WEIGHTS = re.compile(r"(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?(?![A-Za-z])")
BUS, HOST_BANDWIDTH = 25e9, 50e9
"""Bytes a second between card and host, and of the host's memory, in the optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a data sheet's figures that are reached: of arithmetic in updates and in prefill, of memory in
    decoding; and the seconds of a `layer` in a decode step, than which none is faster."""

    update: float
    prefill: float
    decoding: float
    layer: float


ASSUMED = Shares(update=0.35, prefill=0.4, decoding=0.6, layer=70 * 7e-6)  # so many launches
MEASURED: dict[str, Shares] = {
    "h200-141": Shares(update=0.3, prefill=0.4, decoding=0.76, layer=4.3e-05),
}
"""By card; `python -m tools.draw_cards` prints it from benchmarks/results, with which a test compares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of the phases on one card of `ranks`."""

    card: Card
    passes: Passes
    ranks: int

    @property
    def shares(self) -> Shares:
        """Those of the card."""
        return MEASURED.get(self.card.name, ASSUMED)

    def decode_step(self, at_once: int, read: float) -> float:
        """Seconds of a step of `at_once` sequences that reads so many bytes of weights, keys and values."""
        computed = self.frozen_pass(self.passes, at_once * self.ranks)
        floor = self.passes.shape.layers * self.shares.layer
        return max(read / (self.shares.decoding * self.card.bandwidth), computed, floor)

    def generation(self, played: Played, sequences: int, at_once: int) -> float:
        """Seconds to generate `sequences`, of which `at_once` fit the cache together."""
        lengths, shape, size = played.lengths, self.passes.shape, self.passes.size
        read = size * shape.weights + at_once * lengths.typical * shape.bytes_per_token(size)
        steps = sequences * lengths.sampled / max(1, at_once)
        waves = max(steps, lengths.sampled) * RAGGED
        prefilled = sequences * (lengths.prompt / played.samples + lengths.response - lengths.sampled)
        return waves * self.decode_step(at_once, read) + self.frozen_pass(self.passes, prefilled * self.ranks)

    def update(self, learner: LearnerMemory, tokens: float, recomputed: int) -> float:
        """Seconds of forward and backward passes over `tokens` of all ranks, in which so many layers are computed
        again, and of the optimiser's step."""
        shape, products = self.passes.shape, 3 - (learner.lora is not None)  # frozen matrices have no gradient
        flops = 2 * (products * shape.weights + recomputed * shape.layer) * tokens
        seconds = flops / (self.shares.update * self.card.flops) / self.ranks
        # The optimiser reads weight, gradient and two moments, and writes all but the gradient.
        moved = 7 * learner.stepped_size * learner.trained / self.ranks
        if not learner.offload:
            return seconds + moved / (self.shares.decoding * self.card.bandwidth)
        copied = (learner.stepped_size + self.passes.size) * learner.trained / self.ranks
        return seconds + copied / BUS + moved / HOST_BANDWIDTH

    def frozen_pass(self, passes: Passes, tokens: float) -> float:
        """Seconds of a forward pass over `tokens` of all ranks."""
        return 2 * passes.shape.weights * tokens / (self.shares.prefill * self.card.flops) / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A judge or a teacher, by its name: its `weights`, in bfloat16, and the `active` ones of a token. Each of its
    servers has the fewest cards that hold them."""

    weights: float
    active: float

    @classmethod
    def of(cls, model: str) -> Served | None:
        """`Qwen/Qwen3.5-35B-A3B` has 35e9 weights, 3e9 active; None for a name without a number."""
        if (found := _WEIGHTS.search(model.rpartition("/")[2])) is None:
            return None
        return cls(weights=float(found[1]) * 1e9, active=float(found[2] or found[1]) * 1e9)

    def cards(self, card: Card) -> int:
        """Of one server."""
        return math.ceil(2 * self.weights / (SERVER_SHARE * card.memory - SERVER))

    def seconds(self, card: Card, calls: float, *, read: float, written: float, at_once: float) -> float:
        """Of one server, for calls that read and write so many tokens each, of which `at_once` may be sent together."""
        shares, cards = MEASURED.get(card.name, ASSUMED), self.cards(card)
        room = cards * (SERVER_SHARE * card.memory - SERVER) - 2 * self.weights
        together = max(1.0, min(calls, at_once, room / (KEPT * (read + written))))
        moved = 2 * self.weights + together * KEPT * (read + written / 2)
        token = 2 * self.active / (shares.prefill * card.flops * cards)
        step = max(moved / (shares.decoding * card.bandwidth * cards), together * token)
        return max(calls / together, 1) * written * RAGGED * step + calls * read * token


def served_models(recipe: Recipe) -> list[ServedModelRecipe]:
    """The judges and teachers of a recipe, each set of servers once."""
    models = [call.model for stage in recipe.stage for call in stage.model_calls(SIZE)]
    return list({(one.urls, one.server): one for one in models}.values())


def judge_cards(recipe: Recipe, index: int, card: Card) -> int:
    """Cards, during a stage, of judges and teachers that run already, as far as their names say how large they are.
    A server runs from the first stage that asks it to the last."""
    asked = [[(call.model.urls, call.model.model) for call in stage.model_calls(SIZE)] for stage in recipe.stage]
    before, later = ({one for stage in part for one in stage} for part in (asked[: index + 1], asked[index:]))
    sizes = [(len(urls or ()), Served.of(model)) for urls, model in before & later]
    return sum(servers * served.cards(card) for servers, served in sizes if served is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Counts of a stage, and its estimated seconds: in all, of one step by phase, and in all by `purposes`, named as a
    report names what was measured; None where the number of questions is unknown. `notes` say what was assumed."""

    name: str
    kind: str
    steps: int
    episodes: int | None
    searches: int | None = None
    start: float = 0.0
    """Seconds before it, in which the servers that the run starts for it are ready."""
    judge_cards: int = 0
    """Cards of judges and teachers that run already, while it lasts."""
    step_calls: dict[str, int] = field(default_factory=dict)
    """Up to so many calls of served models in one step, or in all of a stage without, by what they are for. Equal cases
    are asked once, so that siblings which say the same need fewer."""
    tokens: int | None = None
    computed: int | None = None
    """Tokens of the learner's passes, each shared prompt once."""
    seconds: float | None = None
    step_seconds: dict[str, float] = field(default_factory=dict)
    purposes: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def calls(self) -> int:
        """Those of the whole stage."""
        return max(1, self.steps) * sum(self.step_calls.values())


def stage_time(planned: StagePlan, card: Card | None, phases: Sequence[Phase], threads: int = 1) -> StageTime:
    """The time of a stage, of which without a `card` only that of searches on `threads` is estimated."""
    stage, steps, counts = planned.stage, planned.stage.last_step, _counts(planned, card, threads)
    if card is None:
        return counts
    speed = Speed(card=card, passes=planned.passes, ranks=planned.machine.ranks)
    played, generating = planned.played, planned.machine.ranks
    if (on_servers := planned.on_servers(generating)) is not None:
        played, generating = on_servers, planned.machine.servers
    generation, sampled = None, 0
    if played is not None and (sequences := played.sequences) is not None:
        fitting = (phase.at_once for phase in phases if phase.stage == stage.name and phase.asked)
        at_once = next(fitting, played.at_once)  # servers elsewhere run as many as they are asked
        generation = speed.generation(played, sequences, at_once)
        sampled = sequences * generating * played.lengths.sampled
    if isinstance(stage, TrainingRecipe):
        again = next(phase.recomputed for phase in phases if phase.stage == stage.name and phase.name == "update")
        counts = replace(counts, tokens=sampled * (1 if stage.plays_before_training else steps) or counts.computed)
        return _training_time(stage, planned, speed, again, counts, generation)
    if generation is None and (played is not None or not counts.calls):  # else a teacher elsewhere writes all of it
        return replace(counts, purposes={})
    purposes = ({} if generation is None else {"questions": generation}) | counts.purposes
    return replace(counts, tokens=sampled, seconds=sum(purposes.values()), purposes=purposes)


def _counts(planned: StagePlan, card: Card | None, threads: int) -> StageTime:
    """What a stage makes, and the seconds of its searches and of the calls of others on cards of their own."""
    stage, steps, computed = planned.stage, 1, None
    alone = played_by(planned.recipe, planned.index, 1)
    if isinstance(stage, TrainingRecipe):
        steps, prompts = stage.last_step, 0 if alone is None else alone.prompts or 0
        trained = stage.trained_tokens(planned.lengths.prompt, planned.lengths.response, prompts)
        computed = round(trained * steps * stage.passes_and_updates[0])
    plays = 1 if getattr(stage, "plays_before_training", False) else steps
    each = 0 if alone is None else alone.sequences
    searches = each * planned.lengths.searches if each else each  # without episodes there may be no lengths
    calls = [call for call in stage.model_calls(SIZE) if call.calls]
    spent, notes, asked = dict[str, float](), dict[str, None](), Counter[str]()
    for call in calls:
        asked[call.kind] += math.ceil(call.calls)
    if asked:
        parts = ", ".join(f"{kind} {number:,}" for kind, number in asked.items())
        sizes = f", with {OWN_CRITERIA} criteria a row and {CLAIMS} claims of two ids an answer"
        line = f"{stage.name}: up to {asked.total():,} judge calls {each_time(stage)} ({parts})"
        notes[line + (sizes if any(call.assumed for call in calls) else "")] = None
    if searches:
        seconds, note = _searching(planned, searches, threads)
        spent["searches"], notes[note] = plays * seconds, None
    if card is not None and calls:
        asking = [_asking(call, planned, card) for call in calls]
        spent["judges"] = steps * sum(seconds for seconds, _ in asking)
        notes |= dict.fromkeys(note for _, note in asking)
    return StageTime(
        name=stage.name,
        kind=stage.kind,
        steps=stage.last_step,
        episodes=None if each is None else each * plays,
        searches=None if searches is None else searches * plays,
        start=start_seconds(planned) if card is not None else 0.0,
        judge_cards=judge_cards(planned.recipe, planned.index, card) if card is not None else 0,
        step_calls=dict(asked),
        computed=computed,
        purposes=spent,
        notes=tuple(notes),
    )


def _training_time(
    stage: TrainingRecipe, planned: StagePlan, speed: Speed, recomputed: int, counts: StageTime, rollout: float | None
) -> StageTime:
    """With the seconds of a `rollout`, of which there is one before all steps or in each; None if nothing is played."""
    learner, passes, steps, step = planned.learner, planned.passes, stage.last_step, dict[str, float]()
    again, updates = stage.passes_and_updates
    trained = (counts.computed or 0) / steps / again
    if learner.reference:
        step["reference pass"] = again * speed.frozen_pass(passes, trained)
    if learner.teacher is not None:
        step["teacher pass"] = again * speed.frozen_pass(learner.teacher, trained)
    step["update"] = again * speed.update(learner, trained, recomputed)
    step["update"] += (updates - again) * speed.update(learner, 0, recomputed)
    saves = sum(map(stage.saves_at, range(1, steps + 1)))
    saved = passes.size * passes.shape.weights + state_bytes(learner)
    purposes = {**counts.purposes, "updates": steps * sum(step.values()), "saves": saves * saved / DISK}
    if rollout is not None:
        purposes = {"rollouts": rollout * (1 if stage.plays_before_training else steps), **purposes}
    if rollout is not None and not stage.plays_before_training:
        step = {"rollout": rollout, **{name: whole / steps for name, whole in counts.purposes.items()}, **step}
    return replace(counts, seconds=sum(purposes.values()), step_seconds=step, purposes=purposes)


def each_time(stage: StageFields) -> str:
    """How often a stage does something."""
    return "a step" if stage.last_step else "in all"


def state_bytes(learner: LearnerMemory) -> int:
    """Bytes of a checkpoint beside its weights."""
    return (learner.stepped_size * learner.trained if learner.masters else 0) + learner.moments


def _searching(planned: StagePlan, searches: int, threads: int) -> tuple[float, str]:
    """Seconds of so many searches, and what they were computed from."""
    folder = _index_of(planned)
    card = expected_card(folder) if folder is not None else None
    once = getattr(planned.stage, "plays_before_training", False)
    what = f"{planned.stage.name}: {searches:,} searches {'in all' if once else each_time(planned.stage)}"
    if folder is None or card is None or card.scan_seconds is None:
        return 0.0, f"{what}, which are not in the time: {folder or 'their server'} is no index whose speed is known"
    if card.kind == "bm25":  # searched in the thread of each rank that plays
        threads = min(threads, planned.machine.ranks)
    spent, there = searches * card.scan_seconds, "" if is_index(folder) else ", as `sleuth get` will write it"
    index = f"{folder} ({' '.join(filter(None, (card.kind, card.storage)))}, {card.count:,} passages{there})"
    return spent / threads, f"{what} of {index}: {spent:,.1f} seconds of a thread, divided by {threads}"


def _index_of(planned: StagePlan) -> Path | None:
    recipe, stage = planned.recipe, planned.stage
    player: Any = stage.player(recipe, planned.index)[0] if isinstance(stage, TrainingRecipe) else stage
    env = recipe.env_and_context(planned.index)[0] if isinstance(stage, EvaluateRecipe) else player.env
    return env.scanned_index


def _asking(call: ModelCalls, planned: StagePlan, card: Card) -> tuple[float, str]:
    """Seconds of the calls of a model, and what they were computed from."""
    what, asked = f"{planned.stage.name}: calls of {call.model.model}", call.model
    if (served := Served.of(asked.model)) is None:
        return 0.0, f"{what} are not in the time: its name does not say how large it is"
    read, written = INSTRUCTIONS + planned.lengths.typical, asked.max_tokens / 2
    servers, cards = len(asked.urls or ("launched",)), served.cards(card)
    share = {"calls": call.calls / servers, "at_once": asked.at_once / servers}
    seconds = served.seconds(card, read=read, written=written, **share) if call.calls else 0.0
    return seconds, f"{what} read {read:,.0f} tokens and write {written:,.0f}; cards: {servers * cards}"


# -- before the first step ---------------------------------------------------------------------------------------------


def start_seconds(planned: StagePlan) -> float:
    """Seconds in which the servers that the run starts for a stage are ready. Those of a pool start together, once in a
    run; that of a judge or a teacher ends with the last of the consecutive stages that ask it."""
    recipe, index, pool = planned.recipe, planned.index, planned.pool
    running = {model.server for model in recipe.stage[index - 1].launched()} if index else set[str]()
    sizes = [served_bytes(model) for model in planned.stage.launched() if model.server not in running]
    if pool is not None and pool.launch is not None and pool not in map(recipe.engine_at, range(index)):
        sizes.append(planned.passes.size * planned.shape.weights)
    return sum(START + size / DISK for size in sizes)


def served_bytes(model: ServedModelRecipe) -> int:
    """Bytes of the weights that the server of a judge or a teacher loads: of bfloat16, by the model's config or else by
    the number in its name, `Qwen3.5-35B-A3B`. Raises SleuthError if neither says how large it is."""
    try:
        size = SIZES["bfloat16"] * shape_of(model.model)[0].weights
    except SleuthError:
        if (served := Served.of(model.model)) is None:
            raise
        size = int(SIZES["bfloat16"] * served.weights)
    return size // (2 if "fp8" in model.arguments else 1)


def missing_bytes(recipe: Recipe, weights: int) -> dict[str, float | None]:
    """Bytes of what a recipe names and this machine does not have: models, published vectors of indexes, and rows; None
    where they are not known."""
    frozen = [stage.frozen_model for stage in recipe.stages_of(TrainingRecipe).values()]
    sizes: dict[str, float | None] = {recipe.model: weights} if recipe.model and not Path(recipe.model).exists() else {}
    for model in filter(None, (*frozen, *(asked.model for asked in served_models(recipe)))):
        if not Path(model).exists():
            sizes[model] = 2 * served.weights if (served := Served.of(model)) is not None else None
    for stage in recipe.stage:
        data, env = getattr(stage, "data", None), getattr(stage, "env", None)
        folder = env.scanned_index if env is not None else None
        if folder is not None and not is_index(folder) and (card := expected_card(folder)) is not None:
            sizes[str(folder)] = 4.0 * card.count * card.encoder.width if card.encoder is not None else None
        files = [getattr(data, key, None) for key in ("questions", "texts", "suite")] + [getattr(stage, "texts", None)]
        sizes |= {str(HubLocation.read(file)): None for file in files if file and HubLocation.read(file)}
    return sizes
