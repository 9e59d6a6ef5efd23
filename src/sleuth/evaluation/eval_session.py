"""A model under a protocol, ready to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.dialects.refine import REFINERS, Mode, refines
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.http_engine import HttpEngine
from sleuth.engines.remote.server import Server, find_server
from sleuth.factories import (
    Setting,
    changes_of_card,
    context_of,
    eval_reward_of,
    load_model,
    load_outline,
    refine_setting,
    search_setting,
    setting_of_card,
)
from sleuth.learn.token_budget import is_out_of_memory
from sleuth.recipe.envs import RefineEnvRecipe, Role, SearchEnvRecipe
from sleuth.render import Renderer
from sleuth.rewards.scorers import scorer_of
from sleuth.rewards.scorers.scorer import STRICT
from sleuth.rollout import Rollout, scored
from sleuth.runs.progress import ProgressBar
from sleuth.runs.protocol import ProtocolCard
from sleuth.types import Engine, Episode, Score, SleuthError, Task

DEFAULT_CONTEXT = 4096
DEFAULT_SLOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model that a server holds, with the tokens that end its texts."""

    server: Server
    eos_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSession:
    """A model under a protocol, ready to be asked. Temperature 0 is greedy; one sample a question. `draw` keys the
    samples beside the seed, where several sets of questions are asked. Another scorer than the strict one is told
    beside it."""

    model: PreTrainedModel | Served
    tokenizer: PreTrainedTokenizerFast
    setting: Setting
    context: int
    slots: int = DEFAULT_SLOTS
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0
    draw: tuple[int, ...] = ()
    scorer: str = STRICT.name

    def ask(self, tasks: Sequence[Task], name: str) -> list[tuple[Episode, Score]]:
        """`samples` scored episodes for each task, in order."""
        with _memory_named(self.slots, self.context):
            return asyncio.run(self._play(tasks, name))

    def protocol(self) -> ProtocolCard:
        """What the model is asked under."""
        return self.setting.protocol(self.scorer, self.context)

    @property
    def server(self) -> Server | None:
        """The server that writes; None where this process does."""
        return self.model.server if isinstance(self.model, Served) else None

    @property
    def weights(self) -> PreTrainedModel:
        """The model itself. Raises SleuthError where a server holds it."""
        if isinstance(self.model, Served):
            raise SleuthError(f"{self.model.server.url} holds the model, and this needs its weights here")
        return self.model

    async def _play(self, tasks: Sequence[Task], name: str) -> list[tuple[Episode, Score]]:
        async with self._engine() as engine:
            rollout = Rollout(
                engine=engine,
                renderer=Renderer(self.tokenizer),
                context=self.context,
                temperature=self.temperature,
                key=(self.seed, *self.draw),
            )
            with ProgressBar(name, len(tasks) * self.samples) as bar:
                groups = await rollout.groups(tasks, self.setting.env, samples=self.samples, finished=bar.advance)
        done = await scored(groups, eval_reward_of(self.scorer, self.setting.dialect, self.tokenizer))
        return [pair for group in done for pair in zip(group.episodes, group.scores, strict=True)]

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[Engine]:
        if isinstance(self.model, Served):
            limits = {"requests_at_once": self.slots, "context": self.context}
            async with HttpEngine(self.model.server, self.tokenizer, eos_ids=self.model.eos_ids, **limits) as engine:
                yield engine
        else:
            yield LocalEngine(self.model, self.tokenizer, slots=self.slots, context=self.context)


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
    prompt_role: Role | None = None,
    slots: int = DEFAULT_SLOTS,
    dtype: str | None = None,
    scorer: str | None = None,
    engine: str | None = None,
    served_as: str | None = None,
) -> tuple[EvalSession, list[str]]:
    """A checkpoint under the protocol it carries, or under another prompt, its role, context, dialect or scorer; and
    what differs from its training. Another dialect brings its own budgets and no context. Passages come from the
    `index` or from servers at `urls`, one of the two; without either, searches find nothing. `engine` is the URL of a
    server that serves the checkpoint: then its weights are not loaded here. A model that carries no protocol searches,
    unless all tasks bring a tool output to refine."""
    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    judge = scorer_of(scorer or (card.scorer if card and not refines(card.dialect) else STRICT.name))
    if engine is not None:
        loaded, tokenizer, holds, notes = _served(model, engine, served_as)
    else:
        loaded, tokenizer = load_model(model, dtype=dtype, device="auto")
        holds, notes = context_of(loaded), []
    overrides = EvalOverrides(
        index=index,
        urls=tuple(urls),
        dialect=dialect,
        prompt=prompt,
        prompt_role=prompt_role,
        forced_search=forced_search,
    )
    setting, differences = resolve_protocol(card, overrides, tokenizer, tasks)
    trained_context = card.context if card is not None and differences is not None else None
    if differences is None:
        trained = f"was trained in the dialect {card.dialect.name!r}" if card else "carries no protocol"
        differences = [f"{model} {trained}: asked in the dialect {setting.dialect.name!r}"]
    fitting, context_notes = _context(context, trained=trained_context, holds=holds)
    session = EvalSession(
        model=loaded,
        tokenizer=tokenizer,
        setting=setting,
        context=fitting,
        slots=slots,
        temperature=1.0 if samples > 1 else 0.0,
        samples=samples,
        scorer=judge.name,
    )
    return session, notes + differences + context_notes


def _served(model: str, url: str, served_as: str | None) -> tuple[Served, PreTrainedTokenizerFast, int, list[str]]:
    """The checkpoint on its server, its tokenizer, the longest sequence that both take, and what is to be said."""
    outline = load_outline(model)
    server, notes = find_server(url, model, served_as=served_as, tokenizer=outline.tokenizer, eos_ids=outline.eos_ids)
    holds = min(outline.context, server.context or outline.context)
    return Served(server=server, eos_ids=outline.eos_ids), outline.tokenizer, holds, [str(server), *notes]


def _context(asked: int | None, *, trained: int | None, holds: int) -> tuple[int, list[str]]:
    """The context to ask with: the one asked for, or the one trained with, as far as the model holds it; and what is to
    be said of it."""
    if asked is not None and asked > holds:
        raise SleuthError(f"--context {asked}: the model holds {holds} tokens; ask with that or fewer")
    if trained is None:
        return asked or min(holds, DEFAULT_CONTEXT), []
    if asked is not None and asked != trained:
        return asked, [f"the context of {asked} tokens is not the {trained} that the checkpoint was trained with"]
    if trained > holds:
        return holds, [f"the model holds {holds} tokens, not the context of {trained} that it was trained with"]
    return trained, []


@contextmanager
def _memory_named(slots: int, context: int) -> Iterator[None]:
    """Out of memory, on either kind of machine, as one line that says what takes it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise SleuthError(
            f"out of memory with {slots} slots of up to {context} tokens: "
            f"ask again with fewer, such as --slots {max(1, slots // 4)}, or with a shorter --context"
        ) from None


DEFAULT_DIALECT = "sleuth"
DEFAULT_PROMPT = "plain"
DEFAULT_REFINER = REFINERS["answer_only"].name
DEFAULT_REFINE_PROMPT = "refine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOverrides:
    """What a person asks for; None leaves it as the checkpoint has it, or else as it is by default."""

    index: Path | None = None
    urls: tuple[str, ...] = ()
    dialect: str | None = None
    prompt: str | None = None
    prompt_role: Role | None = None
    forced_search: bool | None = None


def resolve_protocol(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    """The setting, and what in it is not as the checkpoint was trained; None where it speaks another dialect, or there
    is no card. A model without a card searches, unless all tasks bring a tool output to refine."""
    brought = bool(tasks) and all(task.evidence is not None for task in tasks)
    if refines(card.dialect) if card else brought:
        return _refining(card, overrides, tokenizer, tasks)
    return _searching(card, overrides, tokenizer, tasks)


def _searching(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    role = overrides.prompt_role or (card.prompt_role if card else "raw")
    forced = card.forced_search if card and overrides.forced_search is None else bool(overrides.forced_search)
    env = SearchEnvRecipe(
        kind="search",
        dialect=overrides.dialect or (card.dialect.name if card else DEFAULT_DIALECT),
        prompt=overrides.prompt or (card.prompt if card else DEFAULT_PROMPT),
        prompt_role=role,
        template_flags=card.template_flags if card and role != "raw" else {},
        index=overrides.index,
        urls=overrides.urls,
        retriever="remote" if overrides.urls else "index" if overrides.index else "empty",
        forced_search=forced,
    )
    if card is not None and env.dialect == card.dialect.name:
        return setting_of_card(card, env, tokenizer, tasks)
    return search_setting(env, tokenizer, tasks), None


def _refining(
    card: ProtocolCard | None, overrides: EvalOverrides, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[Setting, list[str] | None]:
    searching = {"--index": overrides.index, "--retriever": overrides.urls, "--forced-search": overrides.forced_search}
    for option, given in searching.items():
        if given:
            raise SleuthError(f"{option} is for a search; here the tool output that the rows bring is refined")
    modes: dict[str, Mode] = {dialect.name: mode for mode, dialect in REFINERS.items()}
    name = overrides.dialect or (card.dialect.name if card else DEFAULT_REFINER)
    if name not in modes:
        raise SleuthError(f"--dialect {name}: here a tool output is refined, in {' or '.join(modes)}")
    role = overrides.prompt_role or (card.prompt_role if card else "raw")
    same = card is not None and card.dialect.name == name
    env = RefineEnvRecipe(
        kind="refine",
        mode=modes[name],
        prompt=overrides.prompt or (card.prompt if card else DEFAULT_REFINE_PROMPT),
        prompt_role=role,
        template_flags=card.template_flags if card and role != "raw" else {},
        turn_tokens=card.dialect.turn_tokens if card and same else None,
    )
    setting = refine_setting(env, tokenizer, tasks, card)
    return setting, changes_of_card(card, setting) if card and same else None
