"""`kind = "grpo"`: reinforcement learning on groups of episodes."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth import family
from sleuth.dialect import Dialect
from sleuth.host.connections import server_url
from sleuth.recipe.data import DataFields, Lengths, QuestionsRecipe
from sleuth.recipe.envs import EnvTable
from sleuth.recipe.judges import UNAVAILABLE_SECONDS, LaunchFields, MemoryAmount
from sleuth.recipe.loss import LossRecipe, SamplingRecipe
from sleuth.recipe.rewards import (
    AnswerSize,
    FunctionFields,
    ModelCalls,
    RewardTable,
    clashing_figures,
    paid,
    scored_late,
    unfit_rewards,
)
from sleuth.recipe.schedule import Scheduled, scheduled
from sleuth.recipe.stage import SampledRecipe
from sleuth.recipe.strict import FilePath, FunctionName, KindTable, Name, OneOf, Row, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.recipe.recipe import Recipe


class CreditFields(KindTable):
    """Credit for single parts of an episode, by the gain in log-probability (nats, under the policy) that they cause.
    It is added to the advantage of their tokens."""

    credited: ClassVar[tuple[str, str]]
    """The kind of the environment whose episodes have such parts, and how they are called."""

    margin: NonNegativeFloat = 1.0
    """Threshold of the gain in nats: above it the bonus is added, otherwise the penalty is subtracted."""
    bonus: NonNegativeFloat = 0.0
    """Added to the advantage if the gain is above `margin`."""
    penalty: NonNegativeFloat = 0.0
    """Subtracted from the advantage if the gain is not above `margin`."""

    @combination
    def _has_effect(self) -> Iterator[str]:
        if not self.bonus and not self.penalty:
            yield "bonus and penalty are both 0, so credit has no effect; set one, such as penalty = 0.2"

    def require_dialect(self, dialect: Dialect) -> None:
        """Raises SleuthError for a dialect in which the gain cannot be computed."""

    @abstractmethod
    def hooks(self, inputs: Any) -> list[Any]:
        """The hooks of `sleuth.training.rollout_worker` that give the credit."""


class PolicyTeacherRecipe(StrictModel):
    """A larger or better model that the policy follows on the tokens it sampled itself (on-policy distillation,
    arXiv:2306.13649). The loss gains, for each token x of a guided episode, `weight` times
    (log p(x) - log q(x))^2 / 2, with the policy p and the teacher q: the expectation of its gradient is that of the
    reverse KL divergence KL(p || q) at that token."""

    named: ClassVar[Mapping[str, str]] = {"model": "model"}
    model: str
    """Folder or hub id of a model with the same vocabulary, which is not trained. Ranks hold it in shards."""
    when: Literal["always", "wrong"] = "always"
    """Episodes that are guided: all, or only those that are not right (arXiv:2508.20324), while the reward trains all
    of them. The scorer of answers says whether one is right; without an `answer` reward, it has the highest score that
    the rewards can give. An episode without a score is never guided."""
    weight: PositiveFloat = 1.0
    """Weight of the KL divergence, in units of the advantage."""
    top_k: PositiveInt | None = None
    """Instead of the sampled token, the divergence over so many of the teacher's likeliest tokens in each place and one
    class for the rest: no sampling variance, and at most the whole divergence. Absent: the sampled token."""


FILE = "file:"


ADDRESS = re.compile(r"https?://([^\s/:]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/\S*)?")


class PoolRecipe(LaunchFields):
    """vLLM or SGLang servers that generate episodes with the learner's weights, which they read from a folder. Either
    they run already (`urls`), or the run starts them (`launch`)."""

    schemes: ClassVar[tuple[str, ...]] = (*LaunchFields.schemes, FILE)
    urls: Annotated[Row[str], Field(min_length=1)] | None = None
    """Addresses of servers that run already, such as `["http://10.0.0.2:30000", "http://10.0.0.3:30000"]`. An entry
    such as `"file:servers.txt"` is a file with an address a line, which is read again during the run: servers that are
    added join it, those that are removed leave."""
    cards: Annotated[Row[NonNegativeInt], Field(min_length=1)] | None = None
    """With `launch`: a server for each of these GPUs. Absent: all but those that train; where there is only one GPU, it
    is shared. Without a GPU there is one server, on the CPU."""
    memory: MemoryAmount | None = None
    """With `launch`: memory of a server, such as "40GB", or "50%" of its GPU; on the CPU that of its KV cache. Absent:
    by the plan on a shared GPU, by the server's default on others, at least 1 GB on a CPU."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """With `launch`: port of the first server, those of the others follow. Absent: free ones."""
    weights: FilePath | None = None
    """Folder for weight updates, which this process and every server must see under this same path. Absent: `weights`
    in the run's folder, which is enough on one machine."""
    requests_at_once: PositiveInt | None = None
    """Concurrent requests (turns) for each server. Absent: its share of the episodes of a step, from 64 to 256; with
    `launch` as many of them as its memory holds by the plan."""
    seconds: PositiveFloat = 300.0
    """Timeout of a turn in seconds; then it is sent to another server."""
    unavailable_timeout: PositiveFloat = UNAVAILABLE_SECONDS
    """Seconds that the run waits while no server answers."""
    sleeps: bool = False
    """Servers release their GPU memory while the learner computes; for one GPU that both share."""
    max_policy_lag: NonNegativeInt = 0
    """Number of updates by which the weights that sampled a token may lag behind. With 1, the episodes of a step are
    generated while the learner trains on the step before. From 2 on, those of as many later steps are, and neither
    waits for the other: a turn that is under way when the weights change goes on with the new ones."""

    @property
    def changes(self) -> bool:
        """Whether a file names servers, so that they may join and leave during a run."""
        return any(url.startswith(FILE) for url in self.urls or ())

    def addresses(self) -> tuple[str, ...]:
        """The servers that run already, of which files are read now. `#` begins a comment in them. Raises SleuthError
        with all that is wrong with a file."""
        found, problems = list[str](), list[str]()
        for url in self.urls or ():
            if not url.startswith(FILE):
                found.append(server_url(url))
                continue
            file = Path(url.removeprefix(FILE))
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}")
                continue
            lines = [server_url(line.partition("#")[0].strip()) for line in text.splitlines()]
            for number, line in enumerate(lines, 1):
                if line and not ADDRESS.fullmatch(line):
                    problems.append(f"{file}, line {number}: {line[:80]!r} should be http://HOST:PORT")
            if not any(lines):
                problems.append(f"{file}: names no server; write one http://HOST:PORT a line")
            found += filter(None, lines)
        problems += [f"{url} is named {count} times" for url, count in Counter(found).items() if count > 1]
        if problems:
            raise SleuthError(f"engine.urls: {'; '.join(problems)}")
        return tuple(found)

    @combination
    def _can_sleep(self) -> Iterator[str]:
        if self.max_policy_lag and self.sleeps:
            yield (
                f"sleeps = true and max_policy_lag = {self.max_policy_lag} exclude each other: servers that sleep "
                "while the learner computes cannot generate then"
            )


BY_DIALECT = {
    "search_r1": ("search_r1",),
    "slime": ("slime", "search_r1"),
    "verl": ("search_r1",),
    "research": ("research",),
    "research_card": ("research",),
}
"""The published methods of a dialect."""


PlayedDataTable = Annotated[DataFields, OneOf("data", lambda data: "episodes" in data.feeds)]
"""`[stage.data]` of a `grpo` stage: questions (a table without `kind`), or texts to think about."""


class GrpoRecipe(SampledRecipe, TrainingRecipe):
    """Group-relative policy optimisation (arXiv:2402.03300) on episodes in an environment."""

    named: ClassVar[Mapping[str, str]] = {"hooks": "functions"}
    runner: ClassVar[str] = "sleuth.training.grpo"
    kind: Literal["grpo"]
    name: Name = "grpo"
    """What the stage is called in the run folder."""
    learning_rate: Annotated[PositiveFloat, Scheduled()]
    """Peak learning rate: a number, or a schedule as of `loss.beta`, which warm-up and `schedule` multiply."""
    prompts_per_step: PositiveInt
    """Questions (groups) in one optimiser step."""
    samples_per_prompt: Annotated[int, Field(ge=2)]
    """Group size: episodes for one question."""
    context: PositiveInt
    """Longest episode in tokens, prompt included."""
    updates_per_batch: PositiveInt = 1
    """Passes of updates over the episodes of a step. The ratio stays that to the policy that sampled them, so that from
    the second update on the bounds of the loss act. The learning rate's schedule counts steps, not updates."""
    prompts_per_update: PositiveInt | None = None
    """Groups of a step in one update (minibatches, in the order in which they were played); absent: all."""
    replace_no_signal: NonNegativeInt = 0
    """Maximum number of extra rounds in a step, which replace groups whose scores are all equal by new questions
    (dynamic sampling: arXiv:2503.14476)."""
    probe_prompts: NonNegativeInt = 32
    """Questions that the stage plays before training, to report what the policy does; 0: none."""
    red_team_every: NonNegativeInt = 50
    """Every so many steps, and before the first, known reward hacks are scored beside honest answers; only with
    env.kind = "refine". 0: never."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """If a larger share of a step's scores is missing, the run stops with an error."""
    data: PlayedDataTable
    """The questions to play, or the texts to think about."""
    env: EnvTable
    """The environment that the policy acts in."""
    engine: PoolRecipe | None = None
    """Servers that generate the episodes; absent: the in-process engine."""
    sampling: SamplingRecipe = SamplingRecipe()
    """How the policy is sampled."""
    reward: Annotated[Row[RewardTable], Field(min_length=1)]
    """The rewards; an episode's score is their weighted sum."""
    credit: Annotated[CreditFields, OneOf("credits")] | None = None
    """Credit for single searches or citations; absent: none."""
    teacher: PolicyTeacherRecipe | None = None
    """A model that the policy follows on its own episodes; absent: none."""
    loss: LossRecipe = LossRecipe()
    """How scores become a gradient."""
    hooks: Row[FunctionName] = ()
    """Classes or functions of your own that act beside the steps, `MODULE:NAME`: figures, changed scores, a tracker
    (docs/how-to/own_code.md)."""

    @combination
    def _hooks_differ(self) -> Iterator[str]:
        names = [name.rpartition(":")[2] for name in self.hooks]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"hooks has {name} twice, and both would have the figures hook_{name}; rename or remove one"

    @combination
    def _env_fits(self) -> Iterator[str]:
        env, asks = self.env, isinstance(self.data, QuestionsRecipe | FunctionFields)
        if getattr(env, "retriever", None) == "gold":
            yield 'env.retriever = "gold" is for evaluations: with it no query matters; set "index"'
        if getattr(env, "closed_book", False):
            yield "env.closed_book = true is for evaluations: with it nothing is searched; remove it"
        tokens = getattr(env, env.turn_key, None)
        if tokens is not None and tokens >= self.context:
            yield f"env.{env.turn_key} = {tokens} leaves no room for a prompt in context = {self.context}"
        if asks and env.plays == "thought":
            yield 'data.kind is missing: env.kind = "thought" reads texts; set kind = "places" or "text"'
        if not asks and env.plays != "thought":
            yield f'data.kind = "{self.data.kind}" needs env.kind = "thought"; "{env.kind}" needs questions'
        credits = family.tables("credits")
        kind = next((table.own_kind() for table in credits if table.credited[0] == env.kind), None)
        if self.credit is not None and kind is None:
            parts = " or ".join(table.credited[1] for table in credits)
            yield f'credit needs {parts}, and env.kind = "{env.kind}" has neither; remove it'
        elif self.credit is not None and kind != self.credit.kind:
            yield f'credit.kind = "{self.credit.kind}" has no effect with env.kind = "{env.kind}"; set "{kind}"'
        yield from unfit_rewards(self.reward, env)

    @combination
    def _rewards_fit(self) -> Iterator[str]:
        gains = scored_late(self.reward)
        if len(gains) > 1:
            yield 'reward has kind = "gain" twice; remove one of them'
        if gains and self.replace_no_signal:
            yield (
                f"replace_no_signal = {self.replace_no_signal} needs scores while episodes are played, and gains are "
                "computed only after all episodes end; remove it"
            )
        for late in (reward for reward in gains if not reward.weight):
            yield f'reward of kind = "{getattr(late, "kind", "")}": weight = 0 is for rewards that are scored at once'
        if not paid(self.reward) and not (self.teacher or self.loss.beta or self.credit):
            yield "reward: every weight is 0, so that no episode is paid; give one a weight, or add [stage.teacher]"
        yield from clashing_figures(self.reward)

    @combination
    def _updates_fit(self) -> Iterator[str]:
        size, loss = self.prompts_per_update, self.loss
        lag = self.engine.max_policy_lag if self.engine is not None else 0
        if lag and loss.old_logprobs == "learner" and loss.tis_cap is None:
            yield (
                f'engine.max_policy_lag = {lag} trains on samples of older weights, and loss.old_logprobs = "learner" '
                'treats them as on-policy: set loss.old_logprobs = "sampler", or loss.tis_cap'
            )
        if lag and "sampling.temperature" in scheduled(self):
            yield (
                f"engine.max_policy_lag = {lag} plays a step at the temperature of an earlier one, and the loss takes "
                "another: set one number as sampling.temperature, or max_policy_lag = 0"
            )
        if size is not None and size > self.prompts_per_step:
            yield (
                f"prompts_per_update = {size} is more than the prompts_per_step = {self.prompts_per_step} of a step; "
                "remove it, or set fewer"
            )
        for key in self.repeats if loss.old_logprobs == "learner" else ():
            yield (
                f'{key} = {getattr(self, key)} needs loss.old_logprobs = "sampler": with "learner" every update would '
                "start from a ratio of 1 to itself, and no bound would act"
            )

    @combination
    def _schedules_fit(self) -> Iterator[str]:
        keys = scheduled(self)
        if "sampling.temperature" in keys and self.engine is not None:
            yield "sampling.temperature has a schedule, which needs the in-process engine; set one number"
        if "learning_rate" in keys and self.embedding_learning_rate is not None:
            yield "embedding_learning_rate is relative to one learning_rate, which has a schedule; remove one of them"

    @combination
    def _something_is_learned(self) -> Iterator[str]:
        teacher = self.teacher
        if teacher is None:
            credited = self.credit is not None or any(isinstance(one, FunctionFields) for one in paid(self.reward))
            if self.loss.advantage == "none" and not credited and not self.loss.beta:
                yield (
                    'loss.advantage = "none" leaves nothing to learn from: add [stage.teacher], or a reward of your '
                    "own whose scores have credits"
                )
            return
        if teacher.when == "wrong" and not any(reward.answer_scorer for reward in self.reward):
            for reward in [reward for reward in self.reward if reward.highest is None][:1]:
                yield f'teacher.when = "wrong": what a right episode scores is not known of a reward "{reward.kind}"'
        whole = {"ratio": self.loss.ratio == "sequence", "function": self.loss.function is not None}
        for key in (key for key, given in whole.items() if given and teacher.top_k is not None):
            yield f"teacher.top_k needs a loss that is a sum over tokens, and loss.{key} makes it none; remove one"
        if self.replace_no_signal:
            yield (
                f"replace_no_signal = {self.replace_no_signal} leaves out groups whose scores are all equal, and the "
                "teacher is for those in which every answer is wrong; remove it"
            )

    @property
    def repeats(self) -> tuple[str, ...]:
        """The keys by which a step has several updates."""
        minibatches = self.prompts_per_update is not None and self.prompts_per_update < self.prompts_per_step
        several = {"updates_per_batch": self.updates_per_batch > 1, "prompts_per_update": minibatches}
        return tuple(key for key, given in several.items() if given)

    @property
    def writes(self) -> Literal["answers", "thoughts"]:
        return "thoughts" if self.env.plays == "thought" else "answers"

    @property
    def sequences_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        return self.env.lengths(self.context, self.data)

    @property
    def played_per_step(self) -> tuple[int, int]:
        return self.prompts_per_step, self.samples_per_prompt

    @property
    def passes_and_updates(self) -> tuple[int, int]:
        size = self.prompts_per_update or self.prompts_per_step
        return self.updates_per_batch, self.updates_per_batch * math.ceil(self.prompts_per_step / size)

    @property
    def keeps_first_weights(self) -> bool:
        return bool(self.loss.beta or scored_late(self.reward))

    @property
    def frozen_model(self) -> str | None:
        return None if self.teacher is None else self.teacher.model

    def trained_tokens(self, prompt: int, response: int, prompts: int) -> int:
        return prompts * (prompt + self.samples_per_prompt * response)

    def model_calls(self, size: AnswerSize) -> Iterator[ModelCalls]:
        for reward in self.reward:
            yield from reward.calls_for(self.sequences_per_step, size)

    def methods(self) -> tuple[str, ...]:
        loss = ("grpo",) if self.loss.advantage == "grpo" else ()
        dialect = BY_DIALECT.get(getattr(self.env, "dialect", ""), ())
        rewards = [method for reward in self.reward for method in reward.methods]
        teacher = () if self.teacher is None else ("dgpo" if self.teacher.when == "wrong" else "distillation",)
        return (*loss, *dialect, *rewards, *teacher)
