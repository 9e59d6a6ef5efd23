"""A model under a protocol, ready to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.build import SearchSetting, context_of, load_model, reward_of, search_setting, setting_of_card
from sleuth.engines.local import LocalEngine
from sleuth.recipe.envs import SearchEnvRecipe
from sleuth.recipe.rewards import AnswerRewardRecipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout, scored
from sleuth.runs.progress import ProgressBar
from sleuth.runs.protocol import ProtocolCard
from sleuth.types import Episode, Score, Task

DEFAULT_CONTEXT = 4096
DEFAULT_DIALECT = "sleuth"
DEFAULT_PROMPT = "plain"
SLOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A model under a protocol, ready to be asked. Temperature 0 is greedy; one sample a question."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    setting: SearchSetting
    context: int
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0

    def ask(self, tasks: Sequence[Task], name: str) -> list[tuple[Episode, Score]]:
        """`samples` scored episodes for each task, in order."""
        engine = LocalEngine(self.model, self.tokenizer, slots=SLOTS, context=self.context)
        rollout = Rollout(
            engine=engine,
            renderer=Renderer(self.tokenizer),
            context=self.context,
            temperature=self.temperature,
            key=(self.seed,),
        )
        reward = reward_of([AnswerRewardRecipe(kind="answer")], self.setting.dialect)

        async def play() -> list[tuple[Episode, Score]]:
            with ProgressBar(name, len(tasks) * self.samples) as bar:
                groups = await rollout.groups(tasks, self.setting.env, samples=self.samples, finished=bar.advance)
            done = await scored(groups, reward)
            return [pair for group in done for pair in zip(group.episodes, group.scores, strict=True)]

        return asyncio.run(play())


def examination_of(
    model: str,
    tasks: Sequence[Task],
    *,
    index: Path | None,
    dialect: str | None,
    prompt: str | None,
    samples: int,
    forced_search: bool,
) -> tuple[Examination, list[str]]:
    """A checkpoint under the protocol it carries, or under another prompt or dialect; and what differs from its
    training. Another dialect brings its own budgets."""
    loaded, tokenizer = load_model(model, dtype="float32", device="auto")
    card = ProtocolCard.read(Path(model)) if Path(model).is_dir() else None
    retriever = SearchEnvRecipe(
        kind="search",
        dialect=dialect or (card.dialect if card else DEFAULT_DIALECT),
        prompt=prompt or (card.prompt if card else DEFAULT_PROMPT),
        index=index,
        retriever="index" if index else "empty",
        forced_search=forced_search,
    )
    if card is not None and retriever.dialect == card.dialect:
        setting, notes = setting_of_card(card, retriever, tokenizer, tasks)
    else:
        setting = search_setting(retriever, tokenizer, tasks)
        trained = f"was trained in the dialect {card.dialect!r}" if card else "carries no protocol"
        notes = [f"{model} {trained}: asked in the dialect {setting.dialect.name!r}"]
    examination = Examination(
        model=loaded,
        tokenizer=tokenizer,
        setting=setting,
        context=min(context_of(loaded), DEFAULT_CONTEXT),
        temperature=1.0 if samples > 1 else 0.0,
        samples=samples,
    )
    return examination, notes
