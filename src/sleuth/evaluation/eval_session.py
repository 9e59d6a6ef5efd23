"""Models to evaluate: a model under a protocol, here or on a server, and a bare one under the name that files use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth import family
from sleuth.answers.answer import AUDIT_SCORE, SCORE
from sleuth.answers.factory import PaidScores, eval_reward_of, judges_in, require_gradable, scorer_warnings
from sleuth.answers.scorers import scorer_of
from sleuth.answers.scorers.scorer import STRICT
from sleuth.answers.tables import EnvironmentRewardRecipe
from sleuth.engines.local.batching import BatchingEngine
from sleuth.engines.local.plain_engine import open_engine
from sleuth.engines.remote.http_engine import HttpEngine
from sleuth.engines.remote.pool import PoolEngine
from sleuth.engines.remote.server import Server, find_server
from sleuth.episodes.function import trained_setting
from sleuth.episodes.protocol import AGENT, ProtocolCard
from sleuth.episodes.setting import Setting, changes_of_card
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.host.checksums import SUMS, has_checksums
from sleuth.host.memory import DEFAULT_SLOTS
from sleuth.host.threads import to_stderr
from sleuth.judges.cache import NamedJudge
from sleuth.judges.factory import JudgePool
from sleuth.kernels.device import is_out_of_memory
from sleuth.learn.models import context_of, load_model, load_outline, plain_line
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import Recipe
from sleuth.recipe.envs import Role, compares_answers, environment_of
from sleuth.recipe.rewards import MeasuredFields, RewardFields, RewardInputs, unfit_rewards
from sleuth.recipe.stage import SampledRecipe
from sleuth.render import Renderer, load_tokenizer
from sleuth.rollout import Rollout, scored
from sleuth.runs.progress import ProgressBar
from sleuth.types import Engine, Episode, Score, SleuthError, Task

DEFAULT_CONTEXT = 4096

OpenPool = Callable[[PreTrainedModel, PreTrainedTokenizerFast, int], PoolEngine | None]
"""The servers that generate in the place of a model, with its weights, sequences of at most so many tokens; None if
there are none: `sleuth.training.engines.evaluation_pool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model in this process, read from the folder or hub id `name`. With `open_pool` servers generate for it. All of
    several `ranks` have it, and each takes a share of what it is asked."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    open_pool: OpenPool | None = None
    ranks: Ranks = ALONE

    @property
    def max_positions(self) -> int:
        """The longest sequence that its config allows, in tokens."""
        return context_of(self.model)

    @contextmanager
    def engine(self, stage: SampledRecipe, context: int) -> Iterator[Engine]:
        """The engine that generates sequences of at most `context` tokens: its servers, or else one in this process
        within the limits of a stage, which then frees its cache."""
        pool = self.open_pool(self.model, self.tokenizer, context) if self.open_pool is not None else None
        if pool is not None:
            yield pool
            return
        local = open_engine(
            self.model, self.tokenizer, slots=stage.slots, context=context, cache_memory=stage.cache_memory
        )
        try:
            yield local
        finally:
            local.sleep()


def load_named(name: str, recipe: Recipe) -> NamedModel:
    """A folder or a hub id, in the recipe's precision, on its device. Raises SleuthError if there is no such model."""
    model, tokenizer = load_model(name, dtype=recipe.dtype, device=recipe.device)
    return NamedModel(name=name, model=model, tokenizer=tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model on a server, with its end-of-sequence tokens."""

    server: Server
    eos_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSession:
    """A model with the protocol, sampling and scorer to evaluate it. Temperature 0 is greedy. `draw` extends the key of
    the samples, so that sets of questions with the same seed have different draws. A `scorer` other than the strict one
    is reported beside it, and so are the user's functions among the `rewards` and what is `measured`. With a `pool` its
    servers generate, which have the weights of `model`. A refiner's claims are judged by `judge`, the lexical one if
    that is None. Of several `ranks` each asks and scores a share of the questions."""

    model: PreTrainedModel | Served
    tokenizer: PreTrainedTokenizerFast
    setting: Setting
    context: int
    slots: int = DEFAULT_SLOTS
    cache_memory: str | None = None
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0
    draw: tuple[int, ...] = ()
    scorer: str = STRICT.name
    rewards: Sequence[RewardFields] = ()
    measured: Sequence[PaidScores] = ()
    pool: PoolEngine | None = None
    judge: NamedJudge | None = None
    ranks: Ranks = ALONE

    def ask(self, tasks: Sequence[Task], name: str) -> list[tuple[Episode, Score]]:
        """`samples` scored episodes for each task, in order."""

        def ask(mine: Sequence[Task], first: int) -> list[tuple[Episode, Score]]:
            with _out_of_memory_hint(self.slots, self.context):
                return asyncio.run(self._play(mine, first, name))

        return self.ranks.dealt(tasks, ask)

    def local_engine(self) -> BatchingEngine:
        """An engine in this process. Raises SleuthError if the model is on a server."""
        return open_engine(
            self.weights, self.tokenizer, slots=self.slots, context=self.context, cache_memory=self.cache_memory
        )

    def open_engine(self) -> HttpEngine | BatchingEngine:
        """An engine that stays open: on the model's server, or in this process."""
        if not isinstance(self.model, Served):
            return self.local_engine()
        limits = {"requests_at_once": self.slots, "context": self.context}
        return HttpEngine(self.model.server, self.tokenizer, eos_ids=self.model.eos_ids, **limits)

    def protocol(self) -> ProtocolCard:
        """The protocol of the questions, with the judge of a refiner's claims as its scorer."""
        card = self.setting.protocol(self.scorer, self.context)
        return card if self.judge is None else card.model_copy(update={"scorer": self.judge.identity})

    def judged_by(self, judge: NamedJudge) -> EvalSession:
        """The same session, whose claims `judge` judges. Raises SleuthError if its model does not refine."""
        if compares_answers(self.setting.dialect):
            raise SleuthError(
                "--judge is for the claims of a MODEL that refines; this one is asked in the dialect "
                f"{self.setting.dialect.name!r}, and its answers are compared with the golden ones"
            )
        return replace(self, judge=judge)

    def measuring(
        self,
        wanted: MeasuredFields,
        tasks: Sequence[Task],
        judge_pool: JudgePool,
        say: Callable[[str], None] = to_stderr,
    ) -> EvalSession:
        """The same session, which measures rewards too, after the exams of their judges. Raises SleuthError if they do
        not fit the tasks or the model, or if a judge cannot be asked or is below its bar."""
        if unfit := [*unfit_rewards(wanted.reward, cast("Any", environment_of(self.setting.dialect)))]:
            raise SleuthError(*unfit)
        require_gradable(wanted.reward, tasks)
        require_accurate(judges_in((*wanted.reward, *wanted.judged_again)), judge_pool, say)
        inputs = RewardInputs(dialect=self.setting.dialect, tokenizer=self.tokenizer, judge_pool=judge_pool)
        tables = {SCORE: wanted.reward, AUDIT_SCORE: wanted.judged_again}
        return replace(self, measured=[PaidScores.of(name, of, inputs) for name, of in tables.items() if of])

    @property
    def server(self) -> Server | None:
        """The server that generates; None if this process does."""
        return self.model.server if isinstance(self.model, Served) else None

    @property
    def weights(self) -> PreTrainedModel:
        """The model itself. Raises SleuthError if it is on a server."""
        if isinstance(self.model, Served):
            raise SleuthError(f"{self.model.server.url} has the model, but this needs the weights in this process")
        return self.model

    async def _play(self, tasks: Sequence[Task], first: int, name: str) -> list[tuple[Episode, Score]]:
        async with self._engine() as engine:
            rollout = Rollout(
                engine=engine,
                renderer=Renderer(self.tokenizer, self.setting.dialect.tags),
                context=self.context,
                temperature=self.temperature,
                key=(self.seed, *self.draw),
            )
            with ProgressBar(name, len(tasks) * self.samples, silent=not self.ranks.first) as bar:
                groups = await rollout.groups(
                    tasks, self.setting.env, samples=self.samples, first_prompt=first, finished=bar.advance
                )
        by = self.rewards, self.judge, self.measured
        reward = eval_reward_of(self.scorer, self.setting.dialect, self.tokenizer, *by)
        scored_groups = await scored(groups, reward)
        return [pair for group in scored_groups for pair in zip(group.episodes, group.scores, strict=True)]

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[Engine]:
        engine = self.pool if self.pool is not None else self.open_engine()
        try:
            yield engine
        finally:
            if self.pool is None and not isinstance(engine, HttpEngine):
                engine.sleep()


def open_eval_session(
    model: str,
    tasks: Sequence[Task],
    *,
    index: Path | None,
    urls: Sequence[str] = (),
    dialect: str | None = None,
    prompt: str | None = None,
    context: int | None = None,
    samples: int = 1,
    forced_search: bool | None = None,
    closed_book: bool = False,
    prompt_role: Role | None = None,
    slots: int = DEFAULT_SLOTS,
    dtype: str | None = None,
    scorer: str | None = None,
    engine: str | None = None,
    served_as: str | None = None,
    allow_code: bool = False,
    protocol: ProtocolCard | None = None,
    without_agent: bool = False,
) -> tuple[EvalSession, list[str]]:
    """A session of a checkpoint under its own protocol, with any changes of prompt, role, context, dialect or scorer,
    and notes on what differs from its training. Another dialect has its own budgets and no trained context. Passages
    come from the `index` or from servers at `urls`; without either, searches find nothing. `closed_book` is the control
    arm in which the model answers without a search. `engine` is the URL of a server that has the checkpoint; its
    weights are then not loaded here. A model without a protocol is asked in `protocol`, or else searches, unless
    all tasks have a tool output to refine. With `allow_code` a checkpoint may name code of the user, which is run. A
    model that an agent of the user's trained needs none `without_agent`: it is then asked as the agent asked it."""
    carried = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    card = carried or protocol
    overrides = EvalOverrides(
        index=index,
        urls=tuple(urls),
        dialect=dialect,
        prompt=prompt,
        prompt_role=prompt_role,
        forced_search=forced_search,
        closed_book=closed_book,
    )
    own: Setting | None = None
    rewards: list[RewardFields] = []
    alone = without_agent and not allow_code and card is not None and card.prompt == AGENT
    if card is not None and card.env is not None:
        name = " and ".join(card.env.functions)
        if not alone and not (card.own_environment and allow_code):
            instead = "add --allow-code, or evaluate it in" if card.own_environment else "evaluate it in"
            raise SleuthError(
                f"{model}: was trained in {name}, code of your own that its card does not start; {instead} a recipe "
                "with an `evaluate` stage whose env names it"
            )
        needed = {"index"} if card.prompt_text and card.corpus_sha256 else set[str]()
        given = (key for key, value in asdict(overrides).items() if value and key not in needed)
        if options := ", ".join(f"--{key.replace('_', '-')}" for key in given):
            raise SleuthError(
                f"{options}: has no effect: {model} was trained in {name}, which prompts it; leave it out"
            )
        if alone:
            from sleuth.episodes.agent import chat_setting  # which imports a server

            own = chat_setting(card, load_tokenizer(model))
        else:
            own = trained_setting(card, model, index)
            rewards = [EnvironmentRewardRecipe(kind="environment")] if card.has_own_score else []
    answer_scorer = scorer_of(scorer or (card.scorer if card and compares_answers(card.dialect) else STRICT.name))
    if engine is not None:
        loaded, tokenizer, max_positions, notes = _find_served(model, engine, served_as)
    else:
        loaded, tokenizer = load_model(model, dtype=dtype, device="auto")
        max_positions, notes = context_of(loaded), list(filter(None, [plain_line(loaded.config, trains=False)]))
    if carried is not None and not has_checksums(Path(model)):
        notes.append(f"{model} has no {SUMS}, as checkpoints of earlier versions: damage would go unnoticed")
    if card is not None and dialect is None and not family.knows_dialect(card.dialect.name):
        notes.append(
            f"{model}: its dialect {card.dialect.name!r} is of no family that is installed here, and it is asked as an "
            "agent that searches: if it is another, install its family or evaluate it by a stage of a recipe"
        )
    adopted = environment_of(card.dialect if card is not None else None, tasks)
    setting: Setting
    differences: list[str] | None
    if own is not None:
        setting, differences = own, changes_of_card(card, own) if card and card.prompt_text else []
    else:
        setting, differences = adopted.setting_to_evaluate(card, overrides, tokenizer, tasks)
    if scorer is not None and not compares_answers(setting.dialect):
        raise SleuthError(
            f"--scorer {scorer} compares answers with golden ones, and {model} refines: leave it out; its claims are "
            "judged, by the judge of --judge FILE"
        )
    trained_context = card.context if card is not None and differences is not None else None
    if differences is None:
        trained = f"was trained in the dialect {card.dialect.name!r}" if card else "carries no protocol"
        differences = [f"{model} {trained}: asked in the dialect {setting.dialect.name!r}"]
    context, context_notes = _choose_context(context, trained=trained_context, max_positions=max_positions)
    session = EvalSession(
        model=loaded,
        tokenizer=tokenizer,
        setting=setting,
        context=context,
        slots=slots,
        temperature=1.0 if samples > 1 else 0.0,
        samples=samples,
        scorer=answer_scorer.name,
        rewards=rewards,
    )
    return session, notes + differences + setting.notes() + context_notes + scorer_warnings(
        [answer_scorer.name], setting
    )


def _find_served(model: str, url: str, served_as: str | None) -> tuple[Served, PreTrainedTokenizerFast, int, list[str]]:
    """The checkpoint on its server, its tokenizer, the longest sequence in tokens that both take, and notes."""
    outline = load_outline(model)
    server, notes = find_server(url, model, served_as=served_as, tokenizer=outline.tokenizer, eos_ids=outline.eos_ids)
    max_positions = min(outline.context, server.context or outline.context)
    return Served(server=server, eos_ids=outline.eos_ids), outline.tokenizer, max_positions, [str(server), *notes]


def _choose_context(requested: int | None, *, trained: int | None, max_positions: int) -> tuple[int, list[str]]:
    """The requested context, else the trained one, in tokens and at most `max_positions`; and notes."""
    if requested is not None and requested > max_positions:
        raise SleuthError(f"--context {requested}: the model holds {max_positions} tokens; ask with that or fewer")
    context = requested or min(max_positions, trained or DEFAULT_CONTEXT)
    if trained is None or context == trained:
        return context, []
    if requested is None:
        return context, [f"the model holds {context} tokens, not the context of {trained} that it was trained with"]
    return context, [f"the context of {context} tokens is not the {trained} that the checkpoint was trained with"]


@contextmanager
def _out_of_memory_hint(slots: int, context: int) -> Iterator[None]:
    """Raises an out-of-memory error of CPU or GPU as a one-line SleuthError with the setting to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise SleuthError(
            f"out of memory with {slots} slots of up to {context} tokens: "
            f"ask again with fewer, such as --slots {max(1, slots // 4)}, or with a shorter --context"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOverrides:
    """Changes that a person asks for; None keeps the checkpoint's value, or else the default."""

    index: Path | None = None
    urls: tuple[str, ...] = ()
    dialect: str | None = None
    prompt: str | None = None
    prompt_role: Role | None = None
    forced_search: bool | None = None
    closed_book: bool = False
