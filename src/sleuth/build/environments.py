"""What the policy talks to: dialect, prompt, retriever and template as one setting."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from sleuth import __version__
from sleuth.dialects import DIALECTS, Dialect
from sleuth.envs.chat_template import ChatTemplate
from sleuth.envs.frames import frame_of
from sleuth.envs.search import SearchEnv
from sleuth.prompts.library import read_prompt, require_askable
from sleuth.prompts.published import QUESTION, place_of
from sleuth.recipe.envs import Role, SearchEnvRecipe
from sleuth.render import check_writable
from sleuth.retrieval.control import EmptyRetriever, ShuffledRetriever
from sleuth.retrieval.open_index import open_index
from sleuth.retrieval.remote import Remote, wait_until_ready
from sleuth.runs.protocol import ProtocolCard, text_sha256
from sleuth.runs.reward_spec import RewardSpec
from sleuth.types import Env, Piece, Retriever, SleuthError, Task

BUDGETS = ("top_k", "searches", "turns", "turn_tokens", "response_tokens", "passage_tokens", "results_tokens")
"""What a recipe may set otherwise than its dialect."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetting:
    """All that the episodes of one stage share. `env` makes the environment of a task; it needs the `template` wherever
    the prompt is a message."""

    dialect: Dialect
    prompt_name: str
    prompt: str
    prompt_role: Role
    template: ChatTemplate | None
    retriever: Retriever
    corpus_sha256: str | None
    forced_search: bool
    closed_book: bool = False

    @property
    def opening(self) -> str:
        """What stands before the policy's first word, a question mark in the question's place."""
        frame = frame_of(self.dialect, self.prompt_role, self.template)
        return "".join(piece.text for piece in frame.open(self._asking, Piece(text="?")))

    @property
    def _asking(self) -> str:
        return self.prompt.replace(place_of(self.prompt), QUESTION)

    def env(self, task: Task) -> Env:
        return SearchEnv(
            task,
            self.dialect,
            self._asking,
            self.retriever,
            forced_search=self.forced_search,
            closed_book=self.closed_book,
            frame=frame_of(self.dialect, self.prompt_role, self.template),
        )

    def protocol(
        self, scorer: str, context: int, reward: RewardSpec | None = None, questions_sha256: str | None = None
    ) -> ProtocolCard:
        """The card that travels with what is trained here, in episodes of at most `context` tokens."""
        return ProtocolCard(
            dialect=self.dialect,
            prompt=self.prompt_name,
            prompt_text=self.prompt,
            prompt_sha256=text_sha256(self.prompt),
            prompt_role=self.prompt_role,
            template_flags=self.template.flags if self.template else {},
            template_sha256=self.template.sha256 if self.template else None,
            context=context,
            forced_search=self.forced_search,
            scorer=scorer,
            corpus_sha256=self.corpus_sha256,
            reward=reward,
            questions_sha256=questions_sha256,
            sleuth_version=__version__,
        )


def search_setting(
    env: SearchEnvRecipe, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]
) -> SearchSetting:
    """The dialect with the recipe's budgets, the prompt and the retriever. The dialect's tags and the chat template are
    tried on the tokenizer, unless it does not exist yet."""
    changed: dict[str, Any] = {key: value for key in BUDGETS if (value := getattr(env, key)) is not None}
    if env.passage_tokens or env.results_tokens:  # the limit that is named takes the place of the dialect's
        changed |= {"passage_tokens": env.passage_tokens, "results_tokens": env.results_tokens}
    if env.hint is not None:
        changed["hint"] = read_prompt(env.hint)
    dialect = dataclasses.replace(dialect_of(env.dialect), **changed)
    return _setting(env, dialect, tokenizer, tasks, prompt_name=Path(env.prompt).stem, prompt=None)


def setting_of_card(
    card: ProtocolCard, env: SearchEnvRecipe, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
) -> tuple[SearchSetting, list[str]]:
    """The dialect that a checkpoint carries, its prompt byte for byte unless `env` names another, on the retriever of
    `env`; and what differs, in words."""
    same = env.prompt == card.prompt
    name, prompt = (card.prompt, card.prompt_text) if same else (Path(env.prompt).stem, None)
    setting = _setting(env, card.dialect, tokenizer, tasks, prompt_name=name, prompt=prompt)
    template = setting.template.sha256 if setting.template else None
    changed = {
        "the corpus": (card.corpus_sha256, setting.corpus_sha256),
        "a forced search": (card.forced_search, env.forced_search),
        "the prompt": (card.prompt_text, setting.prompt),
        "the role of the prompt": (card.prompt_role, env.prompt_role),
        "the chat template": (
            card.template_sha256,
            template if env.prompt_role == card.prompt_role else card.template_sha256,
        ),
    }
    notes = [
        f"{what} is not what the checkpoint was trained with" for what, (was, now) in changed.items() if was != now
    ]
    return setting, notes


def _setting(
    env: SearchEnvRecipe,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    *,
    prompt_name: str,
    prompt: str | None,
) -> SearchSetting:
    """`prompt` is its text; None reads the one that `env` names."""
    prompt = read_prompt(env.prompt) if prompt is None else prompt
    require_askable(prompt, env.prompt_role, prompt_name)
    if dialect.frame != "text" and env.prompt_role == "raw":
        raise SleuthError(
            f'prompt_role = "raw": the dialect {dialect.name!r} speaks in messages of the model\'s chat template; '
            'set prompt_role = "user" or "system"'
        )
    if dialect.frame != "text" and env.forced_search:
        raise SleuthError(
            f"forced_search = true: the dialect {dialect.name!r} has no search that could be opened for it"
        )
    template = None
    if tokenizer is not None:
        check_writable(tokenizer, dialect.tags)
        template = _template_of(env, dialect, tokenizer)
    retriever, corpus = retriever_of(env, tasks)
    return SearchSetting(
        dialect=dialect,
        prompt_name=prompt_name,
        prompt=prompt,
        prompt_role=env.prompt_role,
        template=template,
        retriever=retriever,
        corpus_sha256=corpus,
        forced_search=env.forced_search,
    )


def _template_of(env: SearchEnvRecipe, dialect: Dialect, tokenizer: PreTrainedTokenizerFast) -> ChatTemplate | None:
    """The tokenizer's chat template, wherever the prompt is a message of it."""
    if env.prompt_role == "raw":
        return None
    tools = [dialect.tool.schema] if dialect.frame != "text" and dialect.tool is not None else []
    return ChatTemplate(tokenizer, flags=env.template_flags, tools=tools)


def dialect_of(name: str) -> Dialect:
    """A dialect by its name."""
    if name not in DIALECTS:
        raise SleuthError(f"dialect = {name!r}: there is no such dialect; there are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def retriever_of(env: SearchEnvRecipe, tasks: Sequence[Task]) -> tuple[Retriever, str | None]:
    """What answers searches, and the hash of the corpus behind it."""
    if env.retriever == "empty":
        return EmptyRetriever(), None
    if env.urls:
        corpus = wait_until_ready(env.urls, say=lambda line: print(line, file=sys.stderr, flush=True))
        source: Retriever = Remote(env.urls, env.search_seconds)
    else:
        index = open_index(cast(Path, env.index))
        source, corpus = index, index.card.corpus_sha256
    if env.retriever == "shuffled":
        return ShuffledRetriever(source, [task.question for task in tasks]), corpus
    return source, corpus
