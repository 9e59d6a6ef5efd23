"""What the episodes of one stage share: the dialect, the prompt, and how prompts are rendered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from sleuth import __version__
from sleuth.dialect import Dialect
from sleuth.episodes.chat_template import ChatTemplate
from sleuth.episodes.frames import Frame, frame_of
from sleuth.episodes.library import QUESTION, place_of, read_prompt, require_askable
from sleuth.episodes.protocol import OwnCode, ProtocolCard, RewardSpec, text_sha256
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.recipe.data import AskWith
from sleuth.recipe.envs import RenderedEnvFields, Role
from sleuth.render import Renderer, check_writable
from sleuth.rollout import Rollout
from sleuth.types import (
    UNKNOWN_RETRIEVER,
    Env,
    Episode,
    EpisodeKey,
    Group,
    Piece,
    RetrieverIdentity,
    SleuthError,
    Task,
    Trajectory,
    failed_score,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(ABC):
    """What the episodes of one stage share; each kind of environment adds what it needs. `env` makes the environment of
    a task; if the prompt is a chat message, it needs the `template`. `own_code` records the code of the user that it
    calls."""

    dialect: Dialect
    prompt_name: str = ""
    prompt: str = ""
    prompt_role: Role = "raw"
    template: ChatTemplate | None = None
    ask_with: AskWith = "question"
    corpus_sha256: str | None = None
    retriever_identity: RetrieverIdentity | None = None
    forced_search: bool = False
    closed_book: bool = False
    own_code: OwnCode | None = None

    has_protocol: ClassVar[bool] = True
    """Whether the policy is asked something, so that checkpoints carry how."""
    scores_late: ClassVar[bool] = False
    """Whether hooks complete the scores after all episodes of a step have ended, and shuffle them."""
    longest_answer_is: ClassVar[str] = "turn_tokens = "
    longest_answer_key: ClassVar[str] = "env.turn_tokens"
    """How an error message calls `longest_answer`, and the recipe key that sets it."""
    probe: ClassVar[str] = ""
    """What measures whether a model uses what it is shown, for `sleuth probe`: `module:name` of a function."""

    @abstractmethod
    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        """A fresh environment for one episode, (prompt, sample)."""

    @property
    def longest_answer(self) -> int:
        """Tokens that a context must leave room for after the prompt."""
        return self.dialect.turn_tokens

    def asked_prompt(self) -> str:
        """The prompt with our placeholder of the question."""
        return self.prompt.replace(place_of(self.prompt), QUESTION)

    @property
    def opening(self) -> str:
        """The text before the policy's first token, with a question mark as the question."""
        return "".join(piece.text for piece in self.frame().open(self.asked_prompt(), Piece(text="?")))

    def for_step(self, played: Callable[[], Mapping[int, Group]]) -> Setting:
        """The setting for a step, given the groups that it `played` in an earlier part of the run, if any, by the
        numbers of their prompts."""
        return self

    def figures(self) -> dict[str, float | None]:
        """Figures of its environments since the last time."""
        return {}

    def hooks(self, inputs: Any) -> list[Any]:
        """The hooks of `sleuth.training.rollout_worker` that a GRPO stage has because of its environment."""
        return []

    def notes(self) -> list[str]:
        """What one should know before a model is asked here."""
        return []

    def frame(self) -> Frame:
        """The frame that puts an environment's texts into the policy's context, for one episode."""
        return frame_of(self.dialect, self.prompt_role, self.template)

    def protocol(
        self, scorer: str, context: int, reward: RewardSpec | None = None, questions_sha256: str | None = None
    ) -> ProtocolCard:
        """The card of checkpoints that are trained here, in episodes of at most `context` tokens."""
        return ProtocolCard(
            dialect=self.dialect,
            prompt=self.prompt_name,
            prompt_text=self.prompt,
            prompt_sha256=text_sha256(self.prompt),
            ask_with=self.ask_with,
            prompt_role=self.prompt_role,
            template_flags=self.template.flags if self.template else {},
            template_sha256=self.template.sha256 if self.template else None,
            context=context,
            forced_search=self.forced_search,
            closed_book=self.closed_book,
            scorer=scorer,
            corpus_sha256=self.corpus_sha256,
            retriever=self.retriever_identity,
            reward=reward,
            env=self.own_code,
            questions_sha256=questions_sha256,
            sleuth_version=__version__,
        )


def template_of(
    env: RenderedEnvFields,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> ChatTemplate | None:
    """The tokenizer's chat template, with the schemas of the `tools` or of the dialect's tool, if the prompt is a chat
    message; None without a tokenizer. Raises SleuthError if the tokenizer cannot encode the dialect's tags."""
    if tokenizer is None:
        return None
    check_writable(tokenizer, dialect.tags)
    if env.prompt_role == "raw":
        return None
    if dialect.frame != "text" and dialect.tool is not None:
        tools = [dialect.tool.schema]
    return ChatTemplate(tokenizer, flags=env.template_flags, tools=tools)


def asked_by(
    env: RenderedEnvFields,
    prompt: str,
    dialect: Dialect,
    tokenizer: PreTrainedTokenizerFast | None,
    tasks: Sequence[Task],
    *,
    card: ProtocolCard | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What a setting is made of if its recipe names a `prompt`: the text is that of a checkpoint's `card` if the recipe
    names no other. Raises SleuthError if it does not fit its role."""
    text = card.prompt_text if card is not None and prompt == card.prompt else read_prompt(prompt)
    name = Path(prompt).stem
    require_askable(text, env.prompt_role, name)
    return {
        "dialect": dialect,
        "prompt_name": name,
        "prompt": text,
        "ask_with": "prompt" if any(task.prompt for task in tasks) else "question",
        "prompt_role": env.prompt_role,
        "template": template_of(env, dialect, tokenizer, tools),
    }


def changes_of_card(card: ProtocolCard, setting: Setting) -> list[str]:
    """A sentence for each difference of a setting from a checkpoint's card."""
    template = setting.template.sha256 if setting.template else None
    same_role = setting.prompt_role == card.prompt_role
    unknown = card.corpus_sha256 is None and setting.corpus_sha256 is not None
    notes = ["the checkpoint does not say which corpus it was trained with"] if unknown else []
    changed = {
        "the corpus": (setting.corpus_sha256 if unknown else card.corpus_sha256, setting.corpus_sha256),
        "a forced search": (card.forced_search, setting.forced_search),
        "a closed book": (card.closed_book, setting.closed_book),
        "the prompt": (card.prompt_text, setting.prompt),
        "what is asked with it": (card.ask_with, setting.ask_with),
        "the role of the prompt": (card.prompt_role, setting.prompt_role),
        "the chat template": (card.template_sha256, template if same_role else card.template_sha256),
    }
    was, now = card.retriever, setting.retriever_identity
    if was and now and UNKNOWN_RETRIEVER in (was, now):
        notes.append(f"the checkpoint was trained with the retriever {was}, and this one is {now}")
    elif was and now and (difference := now.difference(was)):
        notes.append(f"the retriever is not what the checkpoint was trained with: {difference}")
    return notes + [
        f"{what} is not what the checkpoint was trained with" for what, (was, now) in changed.items() if was != now
    ]


def trial_group(setting: Setting, task: Task, tokenizer: PreTrainedTokenizerFast, context: int) -> Group:
    """Two invented episodes of a task in its environment, with tokens and log-probabilities: in the first every turn is
    a thought and a golden answer, with the end-of-text token where the answer's tag does not end a turn, in the second
    a question mark."""
    dialect = setting.dialect
    answer = dialect.answer_form.format(text=task.golden_answers[0] if task.golden_answers else "an answer")
    end = "" if dialect.answer.close in dialect.stops else str(tokenizer.eos_token or "")
    right = dialect.think.around("I know it.") + dialect.answer.around(answer) + end

    async def played(turn: str, sample: int) -> Episode:
        rollout = Rollout(
            engine=ScriptedEngine(tokenizer, lambda text, sampling: turn),
            renderer=Renderer(tokenizer, dialect.tags),
            context=context,
            temperature=1.0,
            key=(),
        )
        episode = await rollout.episode(setting.env(task), task, 0, sample)
        return replace(episode, trajectories=tuple(map(_with_logprobs, episode.trajectories)))

    async def both() -> Group:
        return Group(task=task, episodes=(await played(right, 0), await played("?", 1)))

    return asyncio.run(both())


def _with_logprobs(trajectory: Trajectory) -> Trajectory:
    segments = (
        replace(segment, logprobs=(-1.0,) * len(segment.tokens), policy_version=0)
        if segment.author == "policy"
        else segment
        for segment in trajectory.segments
    )
    return replace(trajectory, segments=tuple(segments))


def require_environment(trial: Group) -> None:
    """Raises SleuthError with the reason if an environment failed in a trial, or could not give its score."""
    for episode in trial.episodes:
        if (failed := failed_score(episode) or episode.trajectory.score) is not None and failed.note:
            raise SleuthError(failed.note)
