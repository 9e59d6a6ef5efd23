"""What a process holds in each phase of each stage of a recipe, by part, and what servers of the recipe hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from sleuth.answers.suites import SUITES
from sleuth.host.disk import shown
from sleuth.host.memory import FREE_SHARE, parse_share, total_host_memory
from sleuth.kernels.card_pass import PAGE
from sleuth.plan.memory import CPU, CUDA, FP32, SIZES, Bytes, Device, LearnerMemory, Passes, total
from sleuth.plan.shapes import ModelShape, shape_of
from sleuth.recipe import EvaluateRecipe, GrpoRecipe, Recipe, TrainingRecipe
from sleuth.recipe.data import Lengths
from sleuth.recipe.grpo import PoolRecipe
from sleuth.recipe.stage import EvaluationFields
from sleuth.types import SleuthError

SERVER, SLEEPING_SERVER = 3_000_000_000, 1_500_000_000
"""Bytes of a vLLM or SGLang server beside its weights and cache (activations, graphs, context); of a sleeping one."""
SERVER_SHARE = 0.9
"""The share of its card that a server takes by default: vLLM 0.92, SGLang a little less."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MARGIN = 2_000_000_000
"""Bytes of a shared card that nobody takes."""
SETS = 7
"""Test sets of a suite in a folder."""
LEAST_CPU_CACHE, MOST_CPU_CACHE = 1_000_000_000, 8_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device of `memory` bytes for each of `ranks` processes and of `servers`; `others` have judges and teachers."""

    device: Device
    memory: int
    ranks: int
    servers: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The sequences that one step of a stage generates, or all of an evaluation: `samples` for each of `prompts`, at
    most `at_once` together, in a cache of `cache_memory` at most. `prompts` is None for a file of unknown length."""

    prompts: int | None
    samples: int
    at_once: int
    cache_memory: str | None
    lengths: Lengths

    @property
    def sequences(self) -> int | None:
        """All of them."""
        return None if self.prompts is None else self.prompts * self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNeed:
    """Bytes of the cache for what runs at once: all sequences at their limit, typical ones, and a single one at its
    limit, without which nothing runs."""

    at_limit: int
    typical: int
    least: int

    @classmethod
    def of(cls, played: Played, passes: Passes) -> CacheNeed:
        """The need of these sequences. Siblings share the full pages of their prompt."""
        lengths, page = played.lengths, passes.page()
        shared = lengths.prompt // PAGE
        own = passes.pages(lengths.typical) - shared
        least = passes.pages(lengths.limit)
        groups = -(-played.at_once // played.samples)
        return cls(
            at_limit=played.at_once * least * page,
            typical=(groups * shared + played.at_once * own) * page,
            least=least * page,
        )

    def fitting(self, at_once: int, cache: int) -> int:
        """How many of these sequences fit the bytes `cache`, as typical ones."""
        return max(1, round(at_once * min(1, cache / self.typical)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of a stage. `bytes` of the device and `host` bytes beyond it, by part.

    The part "cache" takes what is free, and the run goes on with less: `need` says how much less, and `needed` is the
    sum with the least; so does the part "kept activations", of all but the `recomputed` layers of an update. `at_once`
    of the sequences that the phase would run together fit as typical ones."""

    stage: str
    name: str
    bytes: Bytes
    host: Bytes = field(default_factory=dict)
    need: CacheNeed | None = None
    asked: int = 0
    at_once: int = 0
    recomputed: int = 0

    @property
    def needed(self) -> int:
        """The least bytes of the device."""
        optional = self.bytes.get("cache", 0) + self.bytes.get("kept activations", 0)
        return total(self.bytes) - optional + (self.need.least if self.need else 0)


def phases_of(recipe: Recipe, shape: ModelShape, machine: Machine) -> list[Phase]:
    """The phases of all stages, in the order in which they run; those of a step of training are listed once."""
    load = {"weights": SIZES[recipe.dtype] * shape.weights, "libraries": machine.device.libraries}
    phases = [Phase(stage=recipe.stage[0].name, name="load", bytes=load)]
    for index in range(len(recipe.stage)):
        beside = served_beside(recipe, index, machine)
        room = replace(machine, memory=machine.memory - beside)
        for phase in StagePlan(recipe, index, shape, room).phases():
            phases.append(replace(phase, bytes=phase.bytes | ({"judge or teacher": beside} if beside else {})))
    return phases


def served_beside(recipe: Recipe, index: int, machine: Machine) -> int:
    """Bytes that the judges and the teacher of a stage take of cards that train or that the policy's servers have."""
    if machine.device != CUDA:
        return 0
    pool, count = recipe.engine_at(index), machine.ranks + machine.servers + machine.others
    taken = {*range(machine.ranks), *((pool and pool.cards) or ())}
    beside = [model for model in recipe.stage[index].launched() if taken.intersection(model.on_cards(count))]
    return sum(parse_share(model.memory or "100%", machine.memory) for model in beside)


def played_by(recipe: Recipe, index: int, ranks: int) -> Played | None:
    """What a rank generates in a step of a training stage, or in an evaluation; None if nothing."""
    stage: Any = recipe.stage[index]
    if isinstance(stage, EvaluationFields):
        questions = stage.asked
        if isinstance(stage, EvaluateRecipe) and stage.data.suite is not None:
            suite, per_set = SUITES.get(str(stage.data.suite)), stage.data.per_set
            questions = suite.asked(per_set) if suite else None if per_set is None else SETS * per_set
        prompts, samples = (
            None if questions is None else math.ceil(questions / ranks) * stage.arms,
            stage.samples_of_each,
        )
    elif isinstance(stage, TrainingRecipe):
        stage, prompts, samples = stage.player(recipe, index)
        prompts = math.ceil(prompts / ranks)
    else:
        return None
    if not samples:
        return None
    return Played(
        prompts=prompts,
        samples=samples,
        at_once=stage.slots if prompts is None else min(stage.slots, prompts * samples),
        cache_memory=stage.cache_memory,
        lengths=recipe.stage[index].lengths(recipe, index),
    )


def learner_of(recipe: Recipe, index: int, shape: ModelShape, machine: Machine) -> LearnerMemory:
    """The learner of a training stage."""
    stage = recipe.stages_of(TrainingRecipe)[index]
    passes = Passes(shape=shape, device=machine.device, size=SIZES[recipe.dtype])
    teacher = None if stage.frozen_model is None else replace(passes, shape=shape_of(stage.frozen_model)[0])
    return LearnerMemory(
        passes=passes,
        lora=stage.lora,
        masters=passes.size < FP32,
        muon=stage.optimiser == "muon",
        reference=stage.keeps_first_weights,
        teacher=teacher,
        checkpointed=stage.gradient_checkpointing,
        ranks=min(machine.ranks, stage.ranks_per_replica or machine.ranks),
        offload=stage.cpu_offload and machine.device.name == "cuda",
    )


def problems_of(phases: Sequence[Phase], memory: int) -> dict[str, str]:
    """A sentence for each stage's worst phase that has no room, with the numbers, by the name of the stage."""
    worst: dict[str, str] = {}
    for phase in sorted(phases, key=lambda phase: -phase.needed):
        if phase.stage in worst:
            continue
        cache, least = phase.bytes.get("cache", 0), phase.need.least if phase.need else 0
        if phase.needed > memory:
            worst[phase.stage] = f"{phase.stage}: {phase.name} needs {phase.needed / 1e9:.1f} of {memory / 1e9:.1f} GB"
        elif cache < least:
            worst[phase.stage] = (
                f"{phase.stage}: {phase.name} has {shown(cache)} for the cache, and one sequence at its limit takes "
                f"{shown(least)}"
            )
    return worst


class StagePlan:
    """A stage of a recipe on a machine: what a rank generates, the model's passes, and its servers if it has some."""

    def __init__(self, recipe: Recipe, index: int, shape: ModelShape, machine: Machine) -> None:
        self.recipe, self.index, self.machine, self.shape = recipe, index, machine, shape
        self.stage = recipe.stage[index]
        self.passes = Passes(shape=shape, device=machine.device, size=SIZES[recipe.dtype])
        self.played = played_by(recipe, index, machine.ranks)
        self.pool = recipe.engine_at(index)
        self.shared = self.pool is not None and shares_learner_card(self.pool, machine)
        """Whether a server is on a card that trains."""

    @property
    def lengths(self) -> Lengths:
        """Of its sequences."""
        return self.stage.lengths(self.recipe, self.index)

    @property
    def learner(self) -> LearnerMemory:
        """That of a training stage."""
        return learner_of(self.recipe, self.index, self.shape, self.machine)

    def on_servers(self, ranks: int) -> Played | None:
        """What each server on a card of its own generates of what `ranks` would; None without such servers."""
        if self.played is None or self.pool is None or self.shared or not self.machine.servers:
            return None
        servers = self.machine.servers
        return played_by_server(
            self.played, self.pool, ranks, servers, requests=self.recipe.requests_of(self.pool, servers)
        )

    def phases(self) -> Iterator[Phase]:
        """In the order in which they run; those of a step of training once."""
        stage, weights = self.stage, self.passes.size * self.shape.weights
        if not isinstance(stage, TrainingRecipe):
            if self.played is not None:  # else a teacher elsewhere generates
                yield self._generation("evaluation", {"weights": stage.models * weights}, {}, self.played)
                yield from self._servers(self.machine.ranks)
            return
        learner = self.learner
        if self.played is not None:
            before = ({"weights": learner.weights}, {}) if stage.plays_before_training else learner.state()
            yield self._generation("rollout", *before, self.played)
            yield from self._servers(self.machine.ranks)
        # Distinct tokens in one pass: the budget, but a whole sequence at least, and of pairs both.
        longest = self.lengths.limit + (stage.rows_at_once - 1) * self.lengths.response
        tokens = min(max(stage.tokens_per_micro_batch, longest), stage.sequences_per_step * self.lengths.limit)
        if learner.reference:
            yield self._training("reference pass", *learner.frozen_pass(tokens, tokens, self.passes))
        if learner.teacher is not None:
            yield self._training("teacher pass", *learner.frozen_pass(tokens, tokens, learner.teacher))
        yield self._update(learner, tokens)
        yield self._training("optimiser step", *learner.optimiser_step())
        yield self._training("checkpoint", *learner.save(), packed=False)

    def _update(self, learner: LearnerMemory, tokens: int) -> Phase:
        held, host = learner.update(tokens, tokens)
        least = self._training("update", held, host)
        others = sum(least.bytes.get(part, 0) for part in ("libraries", "server", "packed weights"))
        kept = learner.kept_layers(tokens, self.machine.memory - others)
        more = total(learner.update(tokens, tokens, kept)[0]) - total(held)
        parts = least.bytes | ({"kept activations": more} if more else {})
        return replace(least, bytes=parts, recomputed=self.shape.layers - kept)

    def _training(self, name: str, held: Bytes, host: Bytes, *, packed: bool = True) -> Phase:
        """`packed`: the engine's copies of weights are still there."""
        copies = self.passes.packed_weights if packed and self.played is not None else 0
        sleeping = {"server": SLEEPING_SERVER} if self.shared else {}
        libraries = self.machine.device.libraries
        return self._phase(name, held | {"packed weights": copies, "libraries": libraries} | sleeping, host)

    def _generation(self, name: str, held: Bytes, host: Bytes, played: Played) -> Phase:
        memory = self.machine.memory
        parts = held | {"libraries": self.machine.device.libraries}
        if self.pool is not None and not self.shared:
            return self._phase(name, parts, host)
        if self.shared:
            parts["server"] = SERVER + self.passes.size * self.shape.weights
        else:
            parts["packed weights"] = self.passes.packed_weights
        free = max(0, memory - total(parts))
        if self.pool is None:
            parts["activations"] = self.passes.sampling(played.at_once)
        room = round(FREE_SHARE[self.machine.device.name] * free)
        if played.cache_memory is not None:  # an engine that is given more than there is shrinks it
            room = min(free, parse_share(played.cache_memory, memory))
        return self._with_cache(name, parts, host, played, room)

    def _servers(self, ranks: int) -> Iterator[Phase]:
        """What a server on a card of its own holds, for what `ranks` of the trainer ask of it."""
        played, memory = self.on_servers(ranks), self.machine.memory
        if played is None or self.pool is None:
            return
        parts = {"server": SERVER, "weights": self.passes.size * self.shape.weights}
        given = round(SERVER_SHARE * memory) if self.pool.memory is None else parse_share(self.pool.memory, memory)
        yield self._with_cache("servers", parts, {}, played, max(0, given - total(parts)))

    def _with_cache(self, name: str, parts: Bytes, host: Bytes, played: Played, room: int) -> Phase:
        """A phase whose cache takes the bytes `room`, or fewer if all sequences fit in those."""
        need = CacheNeed.of(played, self.passes)
        cache = min(room, need.at_limit)
        more = {"need": need, "asked": played.at_once, "at_once": need.fitting(played.at_once, cache)}
        return self._phase(name, parts | {"cache": cache}, host, **more)

    def _phase(self, name: str, parts: Bytes, host: Bytes, **more: Any) -> Phase:
        present = [{part: count for part, count in each.items() if count} for each in (parts, host)]
        return Phase(stage=self.stage.name, name=name, bytes=present[0], host=present[1], **more)


# -- servers -----------------------------------------------------------------------------------------------------------


def ranks_and_servers(recipe: Recipe, cards: int) -> tuple[int, int]:
    """How many of the `cards` of a machine train, and how many have a server of their own, one each; the rest have
    judges and teachers. Servers that would leave no card to train are taken to be elsewhere, and so are those of other
    machines."""
    pools = [stage.engine for stage in recipe.stages_of(GrpoRecipe).values() if stage.engine is not None]
    named = {card for pool in pools if pool.launch is not None for card in pool.cards or ()}
    others = recipe.served_cards(cards) - named
    left = cards - (0 if 0 in others else len(others))  # the first card always trains
    servers = max((_own_cards(pool, left) for pool in pools), default=0)
    return (left - servers, servers) if servers < left else (left, 0)


def shares_learner_card(pool: PoolRecipe, machine: Machine) -> bool:
    """Whether a pool's server is on a card that trains, and sleeps during updates: on one of the first, or, where the
    recipe names none, if no servers have cards of their own."""
    if pool.launch is None:
        return pool.sleeps and _here(pool) > 0
    return machine.servers == 0 if pool.cards is None else min(pool.cards) < machine.ranks


def played_by_server(played: Played, pool: PoolRecipe, ranks: int, servers: int, *, requests: int) -> Played:
    """What each of `servers` generates of what `ranks` would generate alone as `played`, with so many `requests` at
    once."""
    if played.prompts is None:
        return replace(played, at_once=requests, cache_memory=pool.memory)
    prompts = math.ceil(played.prompts * ranks / servers)
    at_once = min(requests, prompts * played.samples)
    return replace(played, prompts=prompts, at_once=at_once, cache_memory=pool.memory)


def _own_cards(pool: PoolRecipe, cards: int) -> int:
    if pool.launch is None:
        return 0 if pool.sleeps else _here(pool)
    if pool.cards is not None:
        return 0 if 0 in pool.cards else len(pool.cards)  # the first card always trains
    return cards - 1  # all but those that train, of which there is one unless a launcher starts more


def _here(pool: PoolRecipe) -> int:
    return sum(urlsplit(url).hostname in LOOPBACK for url in pool.urls or ())


def server_share(
    recipe: Recipe, pool: PoolRecipe, card: int | None, context: int, *, shared: bool, servers: int, ranks: int = 1
) -> tuple[int | None, int]:
    """Bytes of each of the `servers` of a pool (see `server_memory`), None for the server's own default on a card that
    is not `shared`; and how many turns it has in flight: those that the recipe asks for, as far as they fit."""
    given = None if pool.memory is None else parse_share(pool.memory, card or total_host_memory())
    memory = server_memory(recipe, pool, given, card, context, ranks=ranks) if given is not None or shared else None
    requests = recipe.requests_of(pool, servers)
    try:
        shape = shape_of(recipe.model)[0] if recipe.model and pool.requests_at_once is None else None
    except SleuthError:
        shape = None
    if shape is None:
        return memory, requests
    passes = Passes(shape=shape, device=CPU if card is None else CUDA, size=SIZES[recipe.dtype])
    work = 0 if card is None else SERVER + passes.size * shape.weights
    cache = (round(SERVER_SHARE * (card or 0)) if memory is None else memory) - work
    stages = [at for at, stage in recipe.stages_of(GrpoRecipe).items() if stage.engine == pool]
    alone = [played for at in stages if (played := played_by(recipe, at, 1)) is not None]
    each = [played_by_server(played, pool, 1, servers, requests=requests) for played in alone]
    return memory, max(CacheNeed.of(played, passes).fitting(played.at_once, cache) for played in each)


def server_memory(
    recipe: Recipe, pool: PoolRecipe, given: int | None, card: int | None, context: int, *, ranks: int = 1
) -> int | None:
    """Bytes of a server of this pool. On a card of `card` bytes: those that are `given`, or else what the most
    demanding stage leaves of it while the server is awake. On a CPU (None): of its KV cache alone. Raises SleuthError
    if the model does not fit them with one sequence of `context` tokens. None if the model's shape cannot be had.
    """
    if not recipe.model:
        return given
    try:
        shape = shape_of(recipe.model)[0]
    except SleuthError:
        return given
    size = SIZES[recipe.dtype]
    sequence = shape.bytes_per_token(size) * context
    if card is None:
        wanted = min(max(LEAST_CPU_CACHE, recipe.requests_of(pool, 1) * sequence), MOST_CPU_CACHE)
        return _enough(recipe, wanted if given is None else given, sequence, "its KV cache")
    if given is None:
        machine = Machine(device=CUDA, memory=card, ranks=ranks)
        held = [
            total(learner_of(recipe, index, shape, machine).state()[0])
            for index, stage in recipe.stages_of(GrpoRecipe).items()
            if stage.engine == pool
        ]
        held += [
            stage.models * size * shape.weights
            for index, stage in enumerate(recipe.stage)
            if stage.measures and recipe.engine_at(index) == pool
        ]
        machine = replace(machine, others=max(recipe.served_cards(ranks), default=ranks - 1) + 1 - ranks)
        served = [served_beside(recipe, at, machine) for at in range(len(recipe.stage)) if recipe.engine_at(at) == pool]
        given = card - CUDA.libraries - max(held) - max(served, default=0) - MARGIN
    return _enough(recipe, given, SERVER + size * shape.weights + sequence, "weights, work and one sequence")


def _enough(recipe: Recipe, memory: int, needed: int, what: str) -> int:
    if memory < needed:
        raise SleuthError(
            f"engine.launch: {recipe.model} is too large for a server with {max(0, memory) / 1e9:.1f} GB: "
            f"{needed / 1e9:.1f} GB are needed for {what}; raise engine.memory, lower the stage's context, or give the "
            "server a GPU of its own with engine.cards"
        )
    return memory
