"""A model under a protocol, ready to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.build import Setting, context_of, examiner_of, load_model
from sleuth.dialects.refine import refines
from sleuth.engines.local import LocalEngine
from sleuth.recipe.envs import Role
from sleuth.render import Renderer
from sleuth.rewards.scorers import scorer_of
from sleuth.rewards.scorers.strict import STRICT
from sleuth.rollout import Rollout, scored
from sleuth.runs.progress import ProgressBar
from sleuth.runs.protocol import ProtocolCard
from sleuth.stages.asked_setting import Wishes, asked_setting
from sleuth.stages.memory import is_out_of_memory
from sleuth.types import Episode, Score, SleuthError, Task

DEFAULT_CONTEXT = 4096
DEFAULT_SLOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A model under a protocol, ready to be asked. Temperature 0 is greedy; one sample a question. `draw` keys the
    samples beside the seed, where several sets of questions are asked. Another scorer than the strict one is told
    beside it."""

    model: PreTrainedModel
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

    async def _play(self, tasks: Sequence[Task], name: str) -> list[tuple[Episode, Score]]:
        rollout = Rollout(
            engine=LocalEngine(self.model, self.tokenizer, slots=self.slots, context=self.context),
            renderer=Renderer(self.tokenizer),
            context=self.context,
            temperature=self.temperature,
            key=(self.seed, *self.draw),
        )
        with ProgressBar(name, len(tasks) * self.samples) as bar:
            groups = await rollout.groups(tasks, self.setting.env, samples=self.samples, finished=bar.advance)
        done = await scored(groups, examiner_of(self.scorer, self.setting.dialect, self.tokenizer))
        return [pair for group in done for pair in zip(group.episodes, group.scores, strict=True)]


def examination_of(
    model: str,
    tasks: Sequence[Task],
    *,
    index: Path | None,
    dialect: str | None = None,
    prompt: str | None = None,
    context: int | None = None,
    samples: int = 1,
    forced_search: bool | None = None,
    prompt_role: Role | None = None,
    slots: int = DEFAULT_SLOTS,
    dtype: str | None = None,
    scorer: str | None = None,
) -> tuple[Examination, list[str]]:
    """A checkpoint under the protocol it carries, or under another prompt, its role, context, dialect or scorer; and
    what differs from its training. Another dialect brings its own budgets and no context. A model that carries no
    protocol searches, unless all tasks bring a tool output to refine."""
    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    judge = scorer_of(scorer or (card.scorer if card and not refines(card.dialect) else STRICT.name))
    loaded, tokenizer = load_model(model, dtype=dtype, device="auto")
    wishes = Wishes(index=index, dialect=dialect, prompt=prompt, prompt_role=prompt_role, forced_search=forced_search)
    setting, notes = asked_setting(card, wishes, tokenizer, tasks)
    trained_context = card.context if card is not None and notes is not None else None
    if notes is None:
        trained = f"was trained in the dialect {card.dialect.name!r}" if card else "carries no protocol"
        notes = [f"{model} {trained}: asked in the dialect {setting.dialect.name!r}"]
    fitting, more_notes = _context(context, trained=trained_context, holds=context_of(loaded))
    examination = Examination(
        model=loaded,
        tokenizer=tokenizer,
        setting=setting,
        context=fitting,
        slots=slots,
        temperature=1.0 if samples > 1 else 0.0,
        samples=samples,
        scorer=judge.name,
    )
    return examination, notes + more_notes


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
