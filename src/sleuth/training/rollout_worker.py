"""Plays and scores the episodes of each GRPO step, steps ahead if the recipe allows; and the hooks: what parts of a
recipe add to the steps, such as scores that are computed late, and figures of their own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from transformers import PreTrainedModel

from sleuth.data.streamed import Stream
from sleuth.episodes.setting import Setting
from sleuth.judges.factory import JudgePool
from sleuth.learn.batch import Advantages
from sleuth.learn.losses import has_signal
from sleuth.learn.policy import TokenBudget
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.runs.chain import step_name
from sleuth.runs.rollouts import is_whole, read_rollouts, write_rollouts
from sleuth.training.engines import TrainingEngine
from sleuth.training.loop import Figures, InfiniteSampler
from sleuth.training.stage_context import StageContext
from sleuth.training.step_metrics import values_of
from sleuth.types import Group, Reward, SleuthError, Task

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The groups of a step, of which those at the indices `replaced` are not trained, and the figures of judges and
    weights. `asked` counts the questions up to this step, with their hash if they are a stream."""

    groups: list[Group]
    replaced: set[int]
    figures: dict[str, float | None]
    asked: tuple[int, str]


@dataclass(kw_only=True)
class RolloutWorker:
    """What plays the episodes of a stage; each of several ranks plays and scores a share of the groups. `asked` counts
    the prompts of the steps that `play` returned, without those drawn for later ones: a run that goes on from there
    plays them again."""

    stage: GrpoRecipe
    context: StageContext
    engine: TrainingEngine
    renderer: Renderer
    setting: Setting
    order: InfiniteSampler[Task] | Stream
    reward: Reward
    judge_pool: JudgePool
    asked: int = field(init=False)
    drawn: str = field(default="", init=False)  # the hash of what a stream was asked for
    _ranks: Ranks = field(init=False)
    _key: tuple[int, ...] = field(init=False)  # of the stage's draws, as it begins
    _ahead: deque[Future[Played]] = field(default_factory=deque, init=False)  # of the steps after the last one played
    _background: Background | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.asked, self.drawn = self._asked()
        ranks, self._key = self.context.ranks, self.context.key
        self._ranks = ranks.channel() if self.max_policy_lag else ranks  # they play in a thread of their own

    @property
    def max_policy_lag(self) -> int:
        """How many updates the weights that sample may lag behind the learner's."""
        return self.stage.engine.max_policy_lag if self.stage.engine is not None else 0

    @property
    def interrupts(self) -> bool:
        """Whether episodes go on while the servers are given new weights, so that `wait` need not be called."""
        return self.max_policy_lag > 1

    def play(self, step: int) -> Played:
        """The scored groups of a step. If they may lag by `max_policy_lag` updates, those of as many later steps are
        played in the background. Each step has the questions that it would have without a lag, and waits for them all:
        whichever answer is first, no question is favoured, none is dropped, and none is older than the lag allows."""
        lag = self.max_policy_lag
        if not lag:
            played = asyncio.run(self._play(step))
        else:
            self._play_ahead(step, step + lag if self.interrupts else step)
            played = self._ahead.popleft().result()
            self._play_ahead(step + 1, step + lag)
        self.asked, self.drawn = played.asked
        lags = lag_counts(played.groups, step - 1, max_policy_lag=lag)
        if not lag:
            return played
        figures = {"off_policy_fraction": (lags.total() - lags[0]) / lags.total() if lags else None}
        if self.interrupts and lags:
            figures["policy_lag_mean"] = sum(versions * count for versions, count in lags.items()) / lags.total()
        return replace(played, figures=played.figures | figures)

    def _play_ahead(self, first: int, last: int) -> None:
        """Begins the steps from `first` to `last` that have not begun."""
        self._background = self._background or Background()
        for step in range(first + len(self._ahead), min(last, self.stage.last_step) + 1):
            before = self._ahead[-1] if self._ahead else None
            self._ahead.append(self._background.submit(self._play(step, before)))

    def probe(self, count: int) -> list[Group]:
        """Scored groups of the next `count` prompts, which stay in the order."""
        groups = asyncio.run(self._groups(self.order.peek(count), step=0, first_prompt=0))
        self.count()  # the probe's searches and judge calls belong to no step
        return groups

    def wait(self) -> None:
        """Returns when no episode is being played. On several ranks, raises what ended the episodes: the others wait
        for them, and would for this rank to end."""
        futures.wait(self._ahead)
        for played in self._ahead if not self._ranks.alone else ():
            played.result()

    def close(self) -> None:
        """Cancels the episodes that are being played."""
        if self._background is not None:
            self._background.close()

    async def _play(self, step: int, before: Future[Played] | None = None) -> Played:
        """If the recipe asks for it, groups without signal are replaced in the update by those of other prompts: then
        the step `before` takes its questions first. Ranks exchange the groups of that step first."""
        if before is not None and self.stage.replace_no_signal:
            await asyncio.wrap_future(before)
        first, asked = self.order.taken, (0, "")

        async def fresh(count: int) -> list[Group]:
            nonlocal asked
            begin, tasks = self.order.taken, self.order.take(count)
            asked = self._asked()  # before another step takes its own
            earlier = partial(self._played_before, step, first)
            return await self._groups(tasks, step=step, first_prompt=begin, played=earlier, before=before)

        groups = await fresh(self.stage.prompts_per_step)
        replaced: set[int] = set()
        for _ in range(self.stage.replace_no_signal):
            no_signal = {at for at, group in enumerate(groups) if not has_signal(values_of(group))} - replaced
            if not no_signal:
                break
            replaced |= no_signal
            groups += await fresh(len(no_signal))
        return Played(groups=groups, replaced=replaced, figures=self.count(self._ranks), asked=asked)

    def _asked(self) -> tuple[int, str]:
        return self.order.taken, getattr(self.order, "sha256", "")

    def count(self, ranks: Ranks = ALONE) -> dict[str, float | None]:
        """The figures of judges, of all `ranks`, and of environments since the last call."""
        return self.judge_pool.figures(ranks) | self.judge_pool.seconds(ranks) | self.setting.figures()

    async def _groups(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        first_prompt: int,
        played: Callable[[], Mapping[int, Group]] = dict,
        before: Future[Played] | None = None,
    ) -> list[Group]:
        stage, key = self.stage, (*self._key, step)
        rollout = Rollout(
            engine=self.engine,
            renderer=self.renderer,
            context=stage.context,
            temperature=stage.sampling.temperature,
            key=key,
        )
        play = partial(
            rollout.groups,
            make_env=self.setting.for_step(played).env,
            samples=stage.samples_per_prompt,
            reward=self.reward,
        )
        groups = await self._ranks.deal(
            tasks, lambda mine, at: play(mine, first_prompt=first_prompt + at), before, step=step
        )
        if any(reward.shuffle for reward in stage.reward) and not self.setting.scores_late:
            return shuffled_scores(groups, key)
        return groups

    def _played_before(self, step: int, first_prompt: int) -> dict[int, Group]:
        """The groups of a step that was played before, by the numbers of their prompts, if its rollouts were written
        and are whole; none if a change of the user's code, which may be that of a tool, was accepted since."""
        file = rollouts_file(self.context, step)
        if self.context.folder.accepted_reward is not None or not (file.exists() and is_whole(file)):
            return {}
        return dict(enumerate(read_rollouts(file), first_prompt))


def rollouts_file(context: StageContext, step: int) -> Path:
    """The file of the rollouts of a stage's step."""
    return context.folder.rollouts / f"{step_name(context.first_step + step)}.parquet"


def store_rollouts(context: StageContext, step: int, groups: Sequence[Group], advantages: Advantages) -> Path:
    """Writes the rollouts of a step, now or when the disk has room; returns their file."""
    file = rollouts_file(context, step)
    context.folder.backlog.write(f"the rollouts of step {step}", lambda: write_rollouts(file, groups, advantages))
    return file


def require_enough_scores(groups: Sequence[Group], advantages: Advantages, stage: GrpoRecipe) -> None:
    """Raises SleuthError if too many scores are missing: the rest would be another distribution."""
    notes = [score.note for group in groups for score in group.scores if score.value is None]
    episodes = sum(len(group.episodes) for group in groups)
    allowed = stage.max_missing_fraction
    if len(notes) > allowed * episodes:
        reason = f"more than max_missing_fraction = {allowed} allows"
    elif notes and all(advantage is None for of_group in advantages for advantage in of_group):
        reason = f"so that no group keeps the {MIN_SIBLINGS} scores that it needs"
    else:
        return
    raise SleuthError(
        f"{len(notes)} of {episodes} scores are missing ({notes[0]}), {reason}; "
        "nothing was trained: remove the cause and start the run again"
    )


def shuffled_scores(groups: Sequence[Group], key: tuple[int, ...]) -> list[Group]:
    """Control arm: the step's scores in random order, so that they say nothing about their episodes."""
    scores = [score for group in groups for score in group.scores]
    random.Random(f"shuffle {key}").shuffle(scores)
    shuffled = iter(scores)
    return [replace(group, scores=tuple(next(shuffled) for _ in group.scores)) for group in groups]


MIN_SIBLINGS = 2
"""Scores that a group's advantages need; a group with fewer is dropped and counted."""


class Background:
    """An event loop in a thread of its own. `submit` starts work in it at once; `close` cancels what is not done."""

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self._thread = Thread(target=lambda: asyncio.run(self._until_closed()), name="rollouts", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """What the work will return or raise."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancels all work and waits for its end."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _until_closed(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._end.wait()


def lag_counts(groups: Sequence[Group], newest: int, *, max_policy_lag: int) -> Counter[int]:
    """The number of sampled tokens by how many versions their weights lag behind `newest`; none if no version is
    recorded. Raises SleuthError if one lags by more than `max_policy_lag`."""
    lags = Counter[int]()
    for group in groups:
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                for segment in trajectory.segments:
                    for version, count in segment.version_counts if segment.author == "policy" else ():
                        if version is not None:
                            lags[newest - version] += count
    if lags and max(lags) > max_policy_lag:
        raise SleuthError(
            f"an episode was written with the weights of version {newest - max(lags)}, and the learner is at {newest}: "
            f"more than engine.max_policy_lag = {max_policy_lag} allows"
        )
    return lags


class Hook:
    """Acts beside the loop of a GRPO stage; each method does nothing until a hook overrides it."""

    def opening(self) -> list[str]:
        """Lines to print before the first step."""
        return []

    def score(self, step: int, groups: list[Group]) -> tuple[list[Group], Figures]:
        """The groups with what can be scored only after all episodes have ended, and figures of it."""
        return groups, {}

    def after_update(self) -> None:
        """Called when an optimiser step has changed the weights."""

    def measure(self, step: int, groups: Sequence[Group]) -> Figures:
        """More figures of a step, once its weights are published."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The hook's part of a checkpoint's state."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookInputs:
    """What hooks are made with. `frozen` has the weights that the stage started from, if they are kept."""

    worker: RolloutWorker
    model: PreTrainedModel
    budget: TokenBudget
    frozen: PreTrainedModel | None


def hooks_of(inputs: HookInputs) -> list[Hook]:
    """The hooks that a recipe asks for, by its table of credit and its environment."""
    credit = inputs.worker.stage.credit
    return [*(credit.hooks(inputs) if credit is not None else ()), *inputs.worker.setting.hooks(inputs)]
