"""What every stage gets: its index in the run, the model it starts from, and how it saves and resumes."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.local.cache import bytes_per_token, pages_of
from sleuth.engines.remote.pool import SAID_SECONDS, PoolEngine
from sleuth.episodes.fitting import fitting_tasks, require_room, skipped_line
from sleuth.episodes.function import accepted_hash, code_differences
from sleuth.episodes.protocol import OwnCode, ProtocolCard, RewardSpec
from sleuth.episodes.protocol_differences import reward_differences
from sleuth.episodes.setting import Setting, require_environment, trial_group
from sleuth.host.atomic import write_text
from sleuth.host.checksums import damage, has_checksums, require_intact
from sleuth.host.disk import bytes_in, free_bytes
from sleuth.host.model_path import not_a_file
from sleuth.host.threads import PROCESS
from sleuth.kernels.allocator import release_cached_memory
from sleuth.learn.adapters import adaptable_layers, add_adapters, load_adapters
from sleuth.learn.batch import Advantages
from sleuth.learn.model_families import check_family
from sleuth.learn.models import (
    add_to_tokenizer,
    context_of,
    load_frozen_teacher,
    load_model,
    pick_device,
    weights_sha256,
)
from sleuth.learn.policy import frozen_copy
from sleuth.learn.token_budget import TokenBudget
from sleuth.learn.update_resolution import UpdateResolution
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import Recipe, SupervisedRecipe
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.stage import SampledRecipe
from sleuth.recipe.strict import StrictModel
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.alarms import RECENT
from sleuth.runs.chain import forget, recorded
from sleuth.runs.checkpoints import (
    CARD,
    Retention,
    checkpoint_bytes,
    checkpoints_in,
    load_state,
    prune_checkpoints,
    remove_checkpoint,
    remove_set_aside,
    require_named,
    resumable,
    save_checkpoint,
    saved_with_state,
    set_aside,
    step_name,
    step_of,
    steps_set_aside,
)
from sleuth.runs.eval_file import read_eval, with_digests, write_eval
from sleuth.runs.judge_cards import read_cards
from sleuth.runs.model_card import model_card, read_results
from sleuth.runs.rollouts import is_whole, write_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.training.engines import pool_engine_of
from sleuth.training.learning import adapters_of
from sleuth.training.servers import RunServers
from sleuth.types import Group, RunFailed, SleuthError, StoppedByRule, Task, TransientError

Result = TypeVar("Result")
RETRY_PAUSE = 1.0
"""Seconds before a server that an earlier stage has used is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint of a stage after `steps` of its steps, with the state to resume from."""

    checkpoint: Path
    steps: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Stage number `index` of a recipe in a run folder. `model` is what the stage starts from: a folder or a hub id.

    Steps are counted through the whole run, so that a file named after a step belongs to one stage: `first_step` is the
    sum of `steps` of the earlier stages, wherever `stop_after` ended them. `ranks` run the stage together: the first
    one reads the checkpoints in the folder for all, and all of them save at the same time. `servers` are those that the
    run starts.
    """

    recipe: Recipe
    index: int
    folder: RunFolder
    model: str
    first_step: int = 0
    ranks: Ranks = ALONE
    servers: RunServers | None = None

    def pool_for_evaluation(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, context: int
    ) -> PoolEngine | None:
        """The servers that generate sequences of at most `context` tokens for the stage, with the weights of `model`;
        None where the recipe names none, so that this process does. For one process. Raises SleuthError if a server
        cannot be used; where an earlier stage has used them, only after `unavailable_timeout` seconds, for a server
        that is being restarted must not end a run."""
        pool = self.recipe.engine_at(self.index)
        if pool is None:
            return None
        release_cached_memory()
        started = self.servers.of(pool, self.model, context) if self.servers is not None else None
        open_pool = partial(
            pool_engine_of,
            pool,
            model,
            tokenizer,
            context=context,
            temperature=1.0,  # an evaluation does not need log-probabilities
            weights=self.folder.path / "weights",
            say=self.folder.say,
            started=started,
        )
        engine, found = self._retried(open_pool, pool.unavailable_timeout if self.first_step else 0.0)
        if self.servers is not None:
            self.servers.found(pool, found)
        engine.publish(self.first_step)
        return engine

    def _retried(self, work: Callable[[], Result], seconds: float) -> Result:
        """The result of `work`, which is called again for so many seconds while it raises SleuthError."""
        deadline, said = time.monotonic() + seconds, -SAID_SECONDS
        while True:
            try:
                return work()
            except SleuthError as error:
                now = time.monotonic()
                if now >= deadline:
                    raise
                if now - said >= SAID_SECONDS:
                    self.folder.say(f"{error}; asking again for {deadline - now:.0f} seconds")
                    said = now
                time.sleep(RETRY_PAUSE)

    @property
    def key(self) -> tuple[int, ...]:
        """The prefix of the key of every random draw. It changes with each roll-back: the same draws would repeat what
        the run went back from."""
        times = self.folder.manifest.roll_backs(self.stage.name)
        return (self.recipe.seed, self.index, *([times] if times else []))

    def fitting(
        self,
        data: StrictModel,
        setting: Setting,
        tokenizer: PreTrainedTokenizerFast,
        tasks: Sequence[Task],
        context: int,
    ) -> list[Task]:
        """The tasks that a stage trains on: without those that `data` skips, which are printed and recorded."""
        kept, skipped = fitting_tasks(data, setting, tokenizer, tasks, context)
        if skipped:
            self.folder.say(f"stage {self.stage.name}: {skipped_line(data, skipped, len(tasks))}")
            self.folder.manifest.set_skipped(self.stage.name, [task.id for task in skipped], len(tasks))
        return kept

    def load(self, path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """A model in the run's precision, on the run's device."""
        return load_model(str(path), dtype=self.recipe.dtype, device=self.recipe.device, verified=not self.ranks.first)

    def model_to_train(self, saved: Saved | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The model and tokenizer of `saved`, or those that the stage starts from. A stage with adapters always loads
        the weights it started from, since a checkpoint's weights have the adapters merged in."""
        own = saved is not None and self.stage.lora is None
        model, tokenizer = self.load(saved.checkpoint if saved and own else self.model)
        self.adapt(model, saved)
        return model, tokenizer

    def starting_weights(self, model: PreTrainedModel, saved: Saved | None) -> PreTrainedModel:
        """A frozen model with the weights that the stage starts from, under the names of `model`, of which it is a copy
        unless that is of `saved`."""
        if saved is None:
            return frozen_copy(model)
        first = self.load(self.model)[0]
        self.adapt(first)
        return frozen_copy(first)

    def load_teacher(
        self, path: str, tokenizer: PreTrainedTokenizerFast, saved: Saved | None
    ) -> tuple[PreTrainedModel, str]:
        """A frozen model that reads the tokens of `tokenizer`, and the sha256 of its weights, which the stage keeps in
        its state as `teacher`. Raises SleuthError if `saved` began with others."""
        recipe, verified = self.recipe, not self.ranks.first
        teacher = load_frozen_teacher(path, tokenizer, dtype=recipe.dtype, device=recipe.device, verified=verified)
        found = weights_sha256(teacher)
        self._require_same(path, found, saved)
        return teacher, found

    def require_same_teacher(self, model: str, saved: Saved | None) -> str:
        """What the stage keeps of a teacher on a server: its name. Raises SleuthError if `saved` began with another
        teacher."""
        name = f"served: {model}"
        self._require_same(model, name, saved)
        return name

    def _require_same(self, path: str, found: str, saved: Saved | None) -> None:
        if saved is not None and saved.state.get("teacher") != found:
            raise SleuthError(
                f"{path}: this teacher has other weights than the one that the stage began with; continue with that, "
                "or start a new run"
            )

    def adapt(self, model: PreTrainedModel, saved: Saved | None = None) -> None:
        """Add the stage's adapters, if it has any, to the model that it starts from; with the values of `saved`."""
        if self.stage.lora is None:
            return
        seed = random.Random(f"adapters {self.key}").getrandbits(63)
        add_adapters(model, adapters_of(self.stage.lora), seed=seed)
        if saved is not None:
            load_adapters(model, saved.checkpoint)

    def token_budget(self, saved: Saved | None) -> TokenBudget:
        """Tokens of a micro-batch: the recipe's number, or the smaller one of an earlier part of the run."""
        shortages, before = self.folder.shortages, saved.state["budget"] if saved else self.stage.tokens_per_micro_batch
        tokens = self.ranks.broadcast(lambda: shortages.fitting(self.stage.name, before))
        if tokens < before:
            self.folder.say(f"a rank has run out of memory: from here on an update takes {tokens} tokens at once")
        return TokenBudget(tokens, self.folder.say, self.ranks, partial(shortages.note, self.stage.name))

    def saved(self) -> Saved | None:
        """This stage's last intact checkpoint that it can resume from, if it has saved one. Sets damaged ones aside and
        prints what they lack, and which rows and rollouts of the steps before are lost; raises SleuthError if all are
        damaged. Removes those that it replaces, if a kill came between."""
        last = self.ranks.broadcast(self._last_intact)
        if last is None:
            return None
        self.ranks.broadcast(lambda: self._say_lost(range(self.first_step + 1, step_of(last) + 1)))
        self.ranks.broadcast(lambda: self._remove_replaced(last))
        state = load_state(last, mapped=not self.ranks.alone)
        return Saved(checkpoint=last, steps=step_of(last) - self.first_step, state=state)

    def is_finished(self, saved: Saved) -> bool:
        """Whether the stage has trained its last step; prints where it trained more steps than `stop_after` asks for,
        which are not taken back."""
        last = self.stage.last_step
        if saved.steps > last and self.ranks.first:
            self.folder.say(
                f"{self.stage.name}: stop_after = {last}, but {saved.checkpoint} has {saved.steps} steps already and "
                "stays as it is; a new --run ends earlier"
            )
        return saved.steps >= last

    def require_same_reward(self, saved: Saved, reward: RewardSpec, code: Mapping[str, OwnCode] | None = None) -> None:
        """Raises SleuthError if the stage started under another reward, or with other `code` of the user, unless this
        one was accepted by its hash."""
        before = RewardSpec.model_validate_json(json.dumps(saved.state["reward"]))
        recorded = saved.state.get("own_code", {})
        code_before = {what: OwnCode.model_validate_json(json.dumps(one)) for what, one in recorded.items()}
        hashed = accepted_hash(reward, code or {})
        if (before.hash == reward.hash and code_before == (code or {})) or hashed == self.folder.accepted_reward:
            return
        if before.hash != reward.hash:
            changed = ", and ".join(reward_differences(before, reward, ("the checkpoint", "the recipe")))
            problem = f"its reward {before.hash} is not that of the recipe: {changed}"
        else:
            problem = f"{', '.join(code_differences(code_before, code or {}))} changed after it was saved"
        raise SleuthError(
            f"{saved.checkpoint}: {problem}; start a new run, or continue under the new one with "
            f"--accept-reward {hashed}"
        )

    def save(
        self,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        state: Mapping[str, Any],
        *,
        protocol: ProtocolCard | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Path:
        """Saves a checkpoint after `step` steps of this stage, with the texts `beside` as files, and removes the
        checkpoints it replaces; before saving, if both do not fit on the disk. Raises OSError (ENOSPC), with the last
        checkpoint untouched, if there is still no room."""

        def write() -> Path:
            checkpoint = self.folder.checkpoints / step_name(self.first_step + step)
            card = self._card(checkpoint, protocol)
            self._make_room(checkpoint_bytes(model, state))
            self.folder.metrics.sync()
            with self.folder.costing(self.stage.name, "saving"), recorded(checkpoint):
                save_checkpoint(
                    checkpoint,
                    model,
                    tokenizer,
                    card=card,
                    protocol=protocol,
                    state=state,
                    beside=beside,
                    run=self.folder.manifest.run,
                )
            prune_checkpoints(self.folder.checkpoints, checkpoint, self._retention(best=self.best(), saved=checkpoint))
            remove_set_aside(checkpoint)
            return checkpoint

        return self.ranks.broadcast(write)

    def checkpoints(self) -> list[Path]:
        """The checkpoints that this stage can resume from, oldest first."""
        return [place for place in self._own_checkpoints() if resumable(place)]

    def best(self) -> Path | None:
        """The checkpoint with the highest mean reward over the few steps before it, the earliest of equals; None if the
        stage has no reward. One that was saved off schedule counts only if there is no other, so that an interrupted
        run keeps the same checkpoints."""
        rewards = {row["step"]: row.get("reward_mean") for row in self.rows()}

        def mean_reward(checkpoint: Path) -> float | None:
            last = step_of(checkpoint)
            values = [rewards.get(step) for step in range(last - RECENT + 1, last + 1)]
            known = [value for value in values if value is not None]
            return fmean(known) if known else None

        saved, off_schedule = self.checkpoints(), self._off_schedule()
        eligible = [place for place in saved if place not in off_schedule] or saved
        values = {place: value for place in eligible if (value := mean_reward(place)) is not None}
        return max(values, key=values.__getitem__, default=None)

    def rollouts_of(self, step: int) -> Path:
        """The file of a step's rollouts."""
        return self.folder.rollouts / f"{step_name(self.first_step + step)}.parquet"

    def write_rollouts(self, step: int, groups: Sequence[Group], advantages: Advantages) -> Path:
        """Writes the rollouts of a step, now or when the disk has room; returns their file."""
        file = self.rollouts_of(step)
        self.folder.backlog.write(f"the rollouts of step {step}", lambda: write_rollouts(file, groups, advantages))
        return file

    def rows(self) -> list[dict[str, Any]]:
        """This stage's rows of `metrics.jsonl`."""
        return [row for row in self.folder.metrics.rows() if row["stage"] == self.stage.name]

    def _say_lost(self, steps: Sequence[int]) -> None:
        """Prints which rows and rollouts of these steps of the run are lost. They are kept as they are: steps before a
        checkpoint are read by reports and `sleuth replay` alone."""
        lost = {*steps} - {row["step"] for row in self.rows()}
        if lost:
            self.folder.say(
                f"{self.folder.metrics.path} lacks the rows of {len(lost)} of the {len(steps)} steps of stage "
                f"{self.stage.name} so far: its curves and the choice of its best checkpoint do without them"
            )
        files = {step: self.folder.rollouts / f"{step_name(step)}.parquet" for step in steps}
        missing = [file.name for file in files.values() if not file.exists()]
        cut = [file.name for file in files.values() if file.exists() and not is_whole(file)]
        if self.stage.kind != "grpo":  # the others write none, or not at every step
            missing = []
        for what, names in (("missing", missing), ("damaged", cut)):
            if names:
                self.folder.say(
                    f"{self.folder.rollouts}: {len(names)} of the files of {len(files)} steps are {what}, such as "
                    f"{names[0]}"
                )

    def write_card(self, checkpoint: Path) -> None:
        """Writes the card of a checkpoint of this stage again, with what was measured since it was saved."""
        card = self._card(checkpoint, ProtocolCard.read(checkpoint))
        self.folder.backlog.write(f"the card of {checkpoint.name}", lambda: write_text(checkpoint / CARD, card))

    def read_eval(self, name: str, **others: str) -> dict[str, Any] | None:
        """`eval/NAME.json`, if it is of the model that the stage starts from, and of the `others`; prints a line if it
        is of other weights."""
        file, models = self.folder.eval / f"{name}.json", {"model": self.model, **others}
        trained = self.model != self.recipe.model  # a roll-back changes no other weights
        contents = read_eval(file, models=models, rolled_back=trained and self.folder.manifest.rolled_back)
        if contents is None and file.exists():
            self.folder.say(f"{file} is not of the weights that {self.model} has now: it is measured again")
        return contents

    def write_eval(self, name: str, contents: Mapping[str, Any], what: str = "evaluation") -> None:
        """Writes `eval/NAME.json`, or queues it until the disk has room, with the names of the stages that had trained
        the model as `after`."""
        trained = [stage.name for stage in self.recipe.stage[: self.index] if stage.trains]
        whole = with_digests({"name": name, "after": trained, **contents})
        self.folder.backlog.write(f"the {what} {name}", lambda: write_eval(self.folder.eval / f"{name}.json", whole))

    def roll_back(self) -> str:
        """Removes the checkpoints after the best one, and what was measured of them; a line about it. Later random
        draws change (see `key`)."""
        best, last = self.best(), self.checkpoints()[-1]
        assert best is not None  # the pipeline rolls back no other stage
        discarded = [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) > step_of(best)]
        for file in self.folder.eval.glob("*.json"):
            model = str(json.loads(file.read_bytes()).get("model"))
            if model != self.recipe.model and Path(model).name in {place.name for place in discarded}:
                forget(file)
                file.unlink()  # first: a kill in between leaves no figure of weights that are gone
        for place in reversed(discarded):
            remove_checkpoint(place)
        self.folder.manifest.add_roll_back(self.stage.name, left=step_of(last), begun_at=step_of(best))
        return f"back from step {step_of(last)} to step {step_of(best)}, the best checkpoint of stage {self.stage.name}"

    def held_bytes(self) -> int:
        """The disk space of the checkpoints of this stage."""
        return sum(bytes_in(place) for place in self.checkpoints())

    @property
    def stage(self) -> TrainingRecipe:
        """The recipe of this stage."""
        return self.recipe.stages_of(TrainingRecipe)[self.index]

    def _own_checkpoints(self) -> list[Path]:
        return [place for place in checkpoints_in(self.folder.checkpoints) if step_of(place) in self._own_steps]

    @property
    def _own_steps(self) -> range:
        """The steps of the run that are this stage's."""
        return range(self.first_step + 1, self.first_step + self.stage.steps + 1)

    def _off_schedule(self) -> set[Path]:
        """The checkpoints that an undisturbed run would not have saved: those of an interruption or a pause, and those
        that waited for room on the disk."""
        return {place for place in self.checkpoints() if not self.stage.saves_at(step_of(place) - self.first_step)}

    def _last_intact(self) -> Path | None:
        own = {self.folder.checkpoints / step_name(step) for step in self._own_steps}
        for place in self.folder.checkpoints.glob("step-*"):
            if place in own and not place.is_dir():
                raise SleuthError(f"{place}: is {not_a_file(place) or 'a file'} in place of a checkpoint; remove it")
        for place in checkpoints_in(self.folder.checkpoints):
            require_named(place, self.folder.manifest.run)
        damaged: list[tuple[Path, str]] = []
        for place in filter(saved_with_state, reversed(self._own_checkpoints())):
            problem = damage(place)
            if problem is None:
                require_intact(place)
                for broken, why in damaged:
                    aside = set_aside(broken)
                    self.folder.say(
                        f"{broken} is damaged ({why}): it is now {aside.name}; continuing from {place.name}"
                    )
                if not has_checksums(place):
                    self.folder.say(
                        f"{place} has no checksums, as those of earlier versions: damage would go unnoticed"
                    )
                self._say_stateless(f"continuing from {place.name}", after=place)
                return place
            damaged.append((place, problem))
        if damaged:
            broken, why = damaged[0]
            raise SleuthError(
                f"{broken} is damaged ({why}), and stage {self.stage.name} has no intact checkpoint before it: copy it "
                "again from where it is whole, or remove it to train the stage again from its start"
            )
        self._say_stateless(f"stage {self.stage.name} begins again")
        return None

    def _say_stateless(self, then: str, after: Path | None = None) -> None:
        """Prints which checkpoint would be resumed from if its state was not gone: the last one always has it."""
        last = next(reversed(self._own_checkpoints()), None)
        if last is not None and (after is None or step_of(last) > step_of(after)) and not resumable(last):
            self.folder.say(f"{last} has no state to resume from any more: {then}")

    def _remove_replaced(self, last: Path) -> None:
        """Removes the checkpoints that are not needed beside `last`, as `save` does. None if rows are lost: they choose
        the best one."""
        if {*range(self.first_step + 1, step_of(last) + 1)} <= {row["step"] for row in self.rows()}:
            retention = replace(self._retention(best=self.best(), saved=last), until=step_of(last))
            prune_checkpoints(self.folder.checkpoints, last, retention)

    def _card(self, checkpoint: Path, protocol: ProtocolCard | None) -> str:
        return model_card(
            self.recipe,
            stage=self.index,
            step=step_of(checkpoint) - self.first_step,
            checkpoint=checkpoint,
            protocol=protocol,
            results=read_results(self.folder.eval),
            overlaps=self.folder.manifest.read().get("overlap", ()),
            judges=read_cards(self.folder.path).values(),
        )

    def _retention(self, *, best: Path | None, saved: Path, keep: int | None = None) -> Retention:
        stage = self.stage
        last = self.first_step + stage.steps
        repeated = any(step_of(saved) <= step <= last for step in steps_set_aside(self.folder.checkpoints))
        return Retention(
            keep=keep or stage.keep,
            milestone_every=stage.milestone_every,
            best=best,
            after=self.first_step,
            until=last if repeated else None,
            off_schedule=frozenset(self._off_schedule() - {saved}),
        )

    def _make_room(self, needed: int) -> None:
        """If `needed` bytes are not free, remove all checkpoints but the last and the best, then the best."""
        for best in (self.best(), None):
            kept = self.checkpoints()
            if not kept or free_bytes(self.folder.path) >= needed:
                return
            prune_checkpoints(self.folder.checkpoints, kept[-1], self._retention(best=best, saved=kept[-1], keep=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """What a stage is checked against before the run starts: its `index` in the recipe, the `tokenizer` and number of
    `positions` of the model that the run starts from, the bytes of a token in its cache, which updates can change its
    weights, and the layers that can have adapters. A model with random weights does not exist yet: it has none of these
    but `positions`."""

    recipe: Recipe
    index: int
    tokenizer: PreTrainedTokenizerFast | None
    positions: int
    token_bytes: int | None
    resolution: UpdateResolution | None
    linear_layers: Sequence[str] | None

    @property
    def stage_tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer that the stage will have: `tokenizer` with the tokens that earlier stages add."""
        if self.tokenizer is None:
            return None
        tokenizer = copy.deepcopy(self.tokenizer)
        for index, stage in self.recipe.stages_of(SupervisedRecipe).items():
            if index < self.index:
                add_to_tokenizer(tokenizer, stage.tokens)
        return tokenizer

    def require_cache(self, limits: SampledRecipe, context: int) -> None:
        """Raises SleuthError if the cache of an engine in this process holds no sequence of `context` tokens within the
        memory that `limits` name; what is free without a limit is known when the stage begins."""
        if None in (limits.cache_memory, self.token_bytes) or self.recipe.engine_at(self.index) is not None:
            return
        device = torch.device(pick_device(self.recipe.device))
        pages_of(self.token_bytes or 0, device, slots=1, context=context, cache_memory=limits.cache_memory)

    def setting(
        self, data: StrictModel, env: EnvFields, tasks: Sequence[Task], context: int
    ) -> tuple[Setting, list[Task]]:
        """The setting of a stage that plays these tasks of its `data`, and those of them that fit. Raises SleuthError
        if the model or `context` is too short, or the tasks are of another kind than the environment, or an environment
        of the user fails."""
        if context > self.positions:
            raise SleuthError(f"context = {context} is more than the {self.positions} positions of the model")
        setting = env.setting(self.tokenizer, tasks)
        if self.tokenizer is None:
            return setting, list(tasks)
        require_room(data, setting, self.tokenizer, tasks, context)
        kept, _ = fitting_tasks(data, setting, self.tokenizer, tasks, context)
        if setting.own_code is not None and kept:
            require_environment(trial_group(setting, kept[0], self.tokenizer, context))
        return setting, kept


def require_family(recipe: Recipe, config: PreTrainedConfig) -> None:
    """Raises SleuthError if a stage computes in this process what it cannot compute with such a model."""
    sampled = [index for index, stage in enumerate(recipe.stage) if stage.kind in ("evaluate", "win_rate")]
    if len(sampled) < len(recipe.stage) or any(recipe.engine_at(index) is None for index in sampled):
        check_family(config, trains=len(sampled) < len(recipe.stage))


def stage_inputs(recipe: Recipe) -> list[StageInputs]:
    """What each stage of a recipe is checked against. Loads the model; raises SleuthError if that fails."""
    if recipe.init is not None:
        PROCESS.fit(recipe.init.layer_weights)
        known: dict[str, Any] = {
            "tokenizer": None,
            "positions": recipe.init.context,
            "token_bytes": None,
            "resolution": None,
            "linear_layers": None,
        }
    else:
        model, tokenizer = load_model(recipe.model, dtype=recipe.dtype, device="cpu")
        require_family(recipe, model.config)
        known = {
            "tokenizer": tokenizer,
            "positions": context_of(model),
            "token_bytes": bytes_per_token(model.config, model.dtype),
            "resolution": UpdateResolution(model),
            "linear_layers": adaptable_layers(model),
        }
    return [StageInputs(recipe=recipe, index=index, **known) for index in range(len(recipe.stage))]


@contextmanager
def failing() -> Iterator[None]:
    """Turns errors into those of a run that failed, where its input is known to be right; keeps the notes that ranks
    leave on them."""
    try:
        yield
    except SleuthError as error:
        if isinstance(error, StoppedByRule | TransientError):
            raise
        failed = RunFailed(*error.args)
        failed.__notes__ = getattr(error, "__notes__", [])
        raise failed from error.__cause__
