"""One whole step of `recipes/search_0.6b_single_gpu.toml` at its full context, on a generated world: by the trainer
itself where its packages are there, else by the parts that need none of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from benchmarks.flops import update_flops
from benchmarks.gpu.card import forget_peak, peak_bytes, release, timed
from benchmarks.gpu.checks import Check, plan_lacks
from benchmarks.gpu.learner import found_utilisation, kept_bytes
from benchmarks.gpu.sampler import clocked
from sleuth.dialect import dialect_of
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.chat_template import ChatTemplate
from sleuth.episodes.frames import frame_of
from sleuth.episodes.library import QUESTION, place_of, read_prompt
from sleuth.learn.batch import Row, batch_of_groups, trajectory_row
from sleuth.learn.losses import Normaliser, PolicyLoss, group_advantages
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, TokenBudget
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.env import SearchEnv
from sleuth.types import Episode, Group, Passage, Score, Task
from sleuth.world.facts import World, make_world
from sleuth.world.library import Library
from sleuth.world.write_world import draw_questions, write_world

if TYPE_CHECKING:
    from sleuth.recipe import GrpoRecipe, Recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "search_0.6b_single_gpu.toml"
STAGE = "grpo"
PACKAGES = ("pydantic", "tantivy", "pyarrow", "httpx")
"""What the trainer needs beside torch and transformers. Recipes and plans need the first of them."""
SAMPLER_LEARNER_KL = 1e-3
OVER_PLAN = 1.1
WARM = (2, 3, 4)
"""The numbers of the steps that are timed; the first one compiles and captures."""
WARM_SECONDS = 9.0
"""Of rollout and update of a warm step."""


def step(check: Check) -> None:
    """Warm steps of the recipe: their seconds, what their episodes are like, and their memory beside that of the plan.
    A step before them compiles and loads what they have."""
    world = make_world(0, check.scale.people)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        check.skip(
            f"the recipe's own trainer: no {' and no '.join(missing)}; the same step by engine, rollout, environment "
            "and policy, with passages of the world ranked by the words that they share with a query"
        )
        by_parts(check, world)
    else:
        recipe = read_recipe(check, prepare(check, world))
        by_trainer(check, recipe)


def read_recipe(check: Check, changes: Mapping[str, str]) -> Recipe:
    """The recipe with a model and a world of ours, smaller where the check is."""
    from sleuth.recipe import load_recipe

    ours = tuple(f"{key}={json.dumps(value)}" for key, value in {"device": check.device.type, **changes}.items())
    return load_recipe(RECIPE, (*ours, *check.scale.changes))


def stage_of(recipe: Recipe) -> tuple[int, GrpoRecipe]:
    """The stage that trains by reward, and its number."""
    from sleuth.recipe import GrpoRecipe

    return next((at, stage) for at, stage in enumerate(recipe.stage) if isinstance(stage, GrpoRecipe))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a step by parts takes from the recipe, as its file says it; keys that the file leaves out have the
    recipe's defaults here. Read without pydantic, which a Python with torch and transformers may lack."""

    prompts_per_step: int
    samples_per_prompt: int
    context: int
    tokens_per_micro_batch: int
    gradient_checkpointing: bool
    steps: int
    learning_rate: float
    warmup_steps: int
    betas: tuple[float, float]
    env: Mapping[str, Any]
    seed: int = 0
    slots: int = 256
    cache_memory: None = None
    temperature: float = 1.0
    loss: Mapping[str, Any] = field(default_factory=lambda: {"clip_low": 0.2, "clip_high": 0.28})  # of DAPO
    normalise: Normaliser = "token"

    def optimisation(self) -> Optimisation:
        """The optimiser's settings."""
        names = ("steps", "learning_rate", "warmup_steps", "betas")
        return Optimisation(**{name: getattr(self, name) for name in names})


def read_settings(check: Check) -> Settings:
    """The settings of the recipe's training stage, smaller where the check is."""
    stages = tomllib.loads(RECIPE.read_text())["stage"]
    table = next(stage for stage in stages if stage["kind"] == STAGE)
    for change in check.scale.changes:
        key, _, value = change.partition("=")
        *tables, last = key.split(".")[1:]
        changed = table
        for name in tables:
            changed = changed[name]
        changed[last] = tomllib.loads(f"value = {value}")["value"]
    assert table["loss"] == {"setting": "dapo"}, "the loss of a step by parts is DAPO's"
    names = [one.name for one in dataclasses.fields(Settings) if one.name in table and one.name != "loss"]
    return Settings(**{name: table[name] for name in names} | {"betas": tuple(table["betas"])})


def prepare(check: Check, world: World) -> dict[str, str]:
    """Writes a model, a world and its index; the recipe's keys that name them."""
    from sleuth.retrieval.bm25 import build_index

    model, folder = check.folder / "model", check.folder / "world"
    check.scale.model(check.device).save_pretrained(model)
    release(check.device)
    tokenizer_of(check, world).save_pretrained(model)
    write_world(folder, seed=0, people=check.scale.people)
    build_index(folder / "corpus.jsonl", folder / "index")
    check.found("world and index written", (folder / "corpus.jsonl").stat().st_size / 1e6, "MB of text")
    return {
        "model": str(model),
        f"{STAGE}.data.questions": str(folder / "qa_train.jsonl"),
        f"{STAGE}.env.index": str(folder / "index"),
    }


def tokenizer_of(check: Check, world: World) -> Any:
    """A tokenizer with tokens that search for names of the world, and tokens that answer with them."""
    names = sorted({*world.people, *world.works, *world.firms})
    random.Random(0).shuffle(names)
    queries = [f"{name}{more}" for more in ("", " born", " work") for name in names]
    return check.scale.tokenizer(queries[: check.scale.searches], names[: check.scale.answers])


def by_trainer(check: Check, recipe: Recipe) -> None:
    """`GRPOTrainer.step`; a score that differs between siblings stands in for answers, which a random model never
    gets right: without it there would be nothing to learn."""
    from sleuth.judges.factory import JudgePool
    from sleuth.runs.run_folder import RunFolder
    from sleuth.training.grpo import GRPOTrainer
    from sleuth.training.stage_context import StageContext

    index, stage = stage_of(recipe)
    with RunFolder.open(check.folder / "run", recipe) as folder, JudgePool(folder.verdicts) as judges:
        context = StageContext(recipe=recipe, index=index, folder=folder, model=recipe.model)
        trainer = GRPOTrainer(stage, context, None, judges)
        trainer.worker.reward = distinct_scores
        check.found("model opened", sum(p.nbytes for p in trainer.model.parameters()) / 1e9, "GB")

        def one(number: int) -> Played:
            figures, seconds = clocked(check, lambda: trainer.step(number))
            return Played(groups=trainer.groups, figures=figures | {"seconds": seconds})

        steps, peaks = play_all(check, one)
        report(check, stage.context, steps)
        kept = kept_bytes(check, trainer.policy, stage.tokens_per_micro_batch)
        _report_memory(check, peaks, planned_bytes(check, recipe, kept))
        trainer.worker.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A step: its groups, and its figures, among which are `seconds`, `seconds_rollout` and `seconds_update`."""

    groups: Sequence[Group]
    figures: Mapping[str, Any]


def play_all(check: Check, one: Callable[[int], Played]) -> tuple[list[Played], dict[str, int | None]]:
    """The warm steps, as many as there is time for, and the peak memory of the first of them by phase."""
    first = timed(check.device, lambda: one(1))
    check.found("the first step, compiling included", first, "s")
    with peaks_by_phase(check.device) as peaks:
        steps = [one(WARM[0])]
    for number in WARM[1:]:
        last = steps[-1].figures["seconds"]
        if check.left < 1.2 * last + 10:
            check.skip(f"step {number} and later: {check.left:.0f} s are left, and the last one took {last:.0f} s")
            break
        steps.append(one(number))
    return steps, peaks


def by_parts(check: Check, world: World) -> None:
    """The same step by hand: play, score, weigh, update, publish."""
    settings = read_settings(check)
    tokenizer, model = tokenizer_of(check, world), check.scale.model(check.device)
    library = Library(world, random.Random(0))
    questions, retriever = tasks_of(world, library), SharedWords(library)
    slots = min(settings.slots, settings.prompts_per_step * settings.samples_per_prompt)
    limits = {"slots": slots, "context": settings.context, "cache_memory": settings.cache_memory}
    engine = LocalEngine(model, tokenizer, **limits)
    policy = Policy(model, settings.optimisation(), gradient_checkpointing=settings.gradient_checkpointing)
    budget = TokenBudget(settings.tokens_per_micro_batch, lambda line: print(line, file=sys.stderr, flush=True))
    check.found("model opened", sum(p.nbytes for p in model.parameters()) / 1e9, "GB")
    environments = Environments(settings.env, tokenizer, retriever)
    renderer = Renderer(tokenizer, dialect_of(settings.env["dialect"]).tags)
    loss = PolicyLoss(**settings.loss)

    def play(number: int) -> list[Group]:
        key = (settings.seed, 0, number)
        rollout = Rollout(
            engine=engine, renderer=renderer, context=settings.context, temperature=settings.temperature, key=key
        )
        tasks = list(islice(questions, settings.prompts_per_step))
        groups = asyncio.run(
            rollout.groups(tasks, environments.open, samples=settings.samples_per_prompt, reward=distinct_scores)
        )
        engine.sleep()
        return groups

    def learn(groups: Sequence[Group], number: int) -> Any:
        advantages = [group_advantages([score.value for score in group.scores], "grpo") for group in groups]
        batch = batch_of_groups(groups, advantages, normalise=settings.normalise, constant=None)
        update = budget.run(lambda tokens: policy.update(batch, loss, budget=tokens))
        engine.publish(number)
        return update

    def one(number: int) -> Played:
        groups, rollout = clocked(check, lambda: play(number))
        update, learning = clocked(check, lambda: learn(groups, number))
        seconds = {"seconds_rollout": rollout, "seconds_update": learning, "seconds": rollout + learning}
        return Played(groups=groups, figures=dataclasses.asdict(update) | seconds)

    steps, peaks = play_all(check, one)
    report(check, settings.context, steps)
    kept = kept_bytes(check, policy, settings.tokens_per_micro_batch)
    if (lacking := plan_lacks()) is not None:
        check.skip(f"peak memory beside the plan's: no {lacking}")
        _report_memory(check, peaks)
    else:
        recipe = read_recipe(check, {"model": str(check.folder), "grpo.env.index": str(check.folder)})
        _report_memory(check, peaks, planned_bytes(check, recipe, kept))


@dataclass(frozen=True, slots=True)
class Environments:
    """Search environments as the recipe's table describes them, with another retriever."""

    table: Mapping[str, Any]
    tokenizer: Any
    retriever: SharedWords

    def open(self, task: Task, *_: object) -> SearchEnv:
        """The environment of one episode."""
        table = self.table
        dialect = dataclasses.replace(dialect_of(table["dialect"]), turn_tokens=table["turn_tokens"])
        prompt = read_prompt(table["prompt"])
        template = ChatTemplate(self.tokenizer, flags=table["template_flags"])
        frame = frame_of(dialect, table["prompt_role"], template)
        return SearchEnv(task, dialect, prompt.replace(place_of(prompt), QUESTION), self.retriever, frame=frame)


class SharedWords:
    """Ranks the passages of a world by the words that they share with a query."""

    def __init__(self, library: Library) -> None:
        self.articles = library.articles
        self.holding: dict[str, list[int]] = {}
        for number, article in enumerate(self.articles):
            for word in set(article.contents.lower().split()):
                self.holding.setdefault(word, []).append(number)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, best first; ties broken by number."""
        return [self._found(query, k) for query in queries]

    def _found(self, query: str, k: int) -> list[Passage]:
        shared = Counter(number for word in set(query.lower().split()) for number in self.holding.get(word, ()))
        best = sorted(shared, key=lambda number: (-shared[number], number))[:k]
        return [
            Passage(
                id=str(number),
                title=self.articles[number].title,
                text=self.articles[number].text,
                score=float(shared[number]),
            )
            for number in best
        ]


def tasks_of(world: World, library: Library) -> Iterator[Task]:
    """Yields training questions about the world."""
    questions = draw_questions(world, library, "train", random.Random(0))
    for number, question in enumerate(questions):
        yield Task(id=f"train-{number}", question=question.text, golden_answers=(question.answer,))


async def distinct_scores(group: Group) -> list[Score]:
    """Scores between 0 and 1 that differ between siblings, so that every episode has a gradient."""
    return [Score(value=sum(episode.trajectory.tokens) * 0.618034 % 1) for episode in group.episodes]


def report(check: Check, context: int, steps: Sequence[Played]) -> None:
    """The figures of the warm steps: medians of times and rates, and what the last one was like."""
    last = steps[-1]
    episodes = episodes_of(last)
    lengths = [len(episode.trajectory.tokens) for episode in episodes]

    def median(figure: Callable[[Played], float]) -> float:
        return statistics.median(map(figure, steps))

    both = median(lambda step: step.figures["seconds_rollout"] + step.figures["seconds_update"])
    check.found(f"{len(episodes)} episodes, context {context:,}", median(lambda step: step.figures["seconds"]), "s")
    check.found("rollout and update, warm", both, "s", at_most=check.speed_bar(WARM_SECONDS))
    check.found("warm steps", len(steps))
    check.found("rollout", median(lambda step: step.figures["seconds_rollout"]), "s")
    check.found("update", median(lambda step: step.figures["seconds_update"]), "s")
    written = median(lambda step: sum(map(sampled, episodes_of(step))) / step.figures["seconds_rollout"])
    check.found("tokens sampled", written, "tokens/s")
    check.found("tokens sampled by an episode, mean", fmean(map(sampled, episodes)))
    config = check.scale.config()
    found_utilisation(
        check, median(lambda step: update_flops(rows_of(step), config) / step.figures["seconds_update"]), way="update: "
    )
    searches = fmean(episode.trajectory.searches for episode in episodes)
    check.found("searches, mean", searches, at_least=0.5)
    check.found("tokens of an episode, mean", fmean(lengths))
    check.found("tokens of a prompt, mean", fmean(len(episode.trajectory.segments[0].tokens) for episode in episodes))
    check.found("tokens of an episode, most", max(lengths), at_most=context)
    figures = last.figures
    check.found("tokens computed", figures["tokens_computed"])
    check.found("tokens computed, of all", figures["tokens_computed"] / figures["tokens_dense"], at_most=1.0)
    check.found("gradient norm", figures["gradient_norm"], at_least=1e-9)
    if (gap := figures.get("sampler_learner_kl")) is not None:
        check.found("sampler to learner, KL", gap, "nats", at_most=SAMPLER_LEARNER_KL)


def episodes_of(step: Played) -> list[Episode]:
    """All episodes of a step."""
    return [episode for group in step.groups for episode in group.episodes]


def rows_of(step: Played) -> list[Row]:
    """Its rows for the learner, with any advantage."""
    return [trajectory_row(trajectory, 1.0) for one in episodes_of(step) for trajectory in one.trajectories]


def sampled(episode: Episode) -> int:
    """The number of tokens that the policy wrote."""
    segments = (segment for trajectory in episode.trajectories for segment in trajectory.segments)
    return sum(len(segment.tokens) for segment in segments if segment.author == "policy")


def _report_memory(check: Check, peaks: Mapping[str, int | None], planned: Mapping[str, int] | None = None) -> None:
    """The peak memory of each phase, beside the plan's."""
    if not check.on_card:
        check.skip("peak memory: needs a card")
        return
    for name, peak in peaks.items():
        if peak is not None:
            check.found(f"{name}: peak memory", peak / 1e9, "GB")
        if peak is not None and planned is not None:
            check.found(f"{name}: peak memory, of the plan's", peak / planned[name], at_most=OVER_PLAN)


def planned_bytes(check: Check, recipe: Recipe, kept: int = 0) -> dict[str, int]:
    """What `sleuth plan --card` computes for the phases of the stage, on a card of this size, without what a process
    holds before it has tensors; in the update with the activations that layers have `kept` because they fit."""
    from sleuth.plan.memory import CUDA, total
    from sleuth.plan.phases import Machine, phases_of
    from sleuth.plan.shapes import read_shape

    memory = torch.cuda.get_device_properties(check.device).total_memory if check.on_card else 80 * 10**9
    shape = read_shape(check.scale.config().to_dict(), "model")
    phases = phases_of(recipe, shape, Machine(device=CUDA, memory=memory, ranks=1))
    of_stage = {phase.name: total(phase.bytes) - CUDA.libraries for phase in phases if phase.stage == STAGE}
    return {"rollout": of_stage["rollout"], "update": max(of_stage["update"] + kept, of_stage["optimiser step"])}


@contextmanager
def peaks_by_phase(device: torch.device) -> Iterator[dict[str, int | None]]:
    """Within this context, which has one step, the most bytes of tensors before the policy's first update and from
    there on."""
    peaks: dict[str, int | None] = {}
    update = Policy.update

    def measured(self: Policy, *arguments: Any, **options: Any) -> Any:
        if not peaks:
            peaks["rollout"] = peak_bytes(device)
            forget_peak(device)
        return update(self, *arguments, **options)

    forget_peak(device)
    with patch.object(Policy, "update", measured):
        yield peaks
    peaks["update"] = peak_bytes(device)
