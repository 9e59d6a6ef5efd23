"""What a policy thinks about: places in texts as tasks, and what its episodes there share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerFast

from sleuth.data.documents import part_of, read_documents
from sleuth.data.questions import select_tasks
from sleuth.dialects import DIALECTS
from sleuth.envs.thought import ThoughtEnv, ThoughtLimits
from sleuth.factories.setting import Setting
from sleuth.factories.text import excerpts_of, plain_tokens
from sleuth.factories.thoughts import THINK, has_tags, interleaved_tokens, tag_piece
from sleuth.recipe.data import QuestionsRecipe
from sleuth.recipe.envs import ThoughtEnvRecipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.text import PlacesRecipe, TextRecipe
from sleuth.render import Renderer, check_writable, decode
from sleuth.types import Continuation, Document, Env, Piece, Segment, SleuthError, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place to think: the task of going on from there, and what a `teacher` thought, where the data has it."""

    task: Task
    teacher: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtSetting(Setting):
    """What the episodes of a stage that thinks share. Its dialect gives the tags of a thought and nothing else."""

    limits: ThoughtLimits
    opening_tag: Piece
    closing_tag: Piece

    def env(self, task: Task) -> Env:
        return ThoughtEnv(task, self.limits, self.opening_tag, self.closing_tag)

    @property
    def longest_answer(self) -> int:
        """Tokens of a thought, of its closing tag and of the suffix."""
        return self.limits.thought_tokens + len(self.closing_tag.tokens or ()) + self.limits.suffix_tokens


def thought_setting(env: ThoughtEnvRecipe, tokenizer: PreTrainedTokenizerFast | None) -> ThoughtSetting:
    """The limits of the recipe, and the tags as tokens where the tokenizer exists already. Raises SleuthError where it
    cannot write them."""
    limits = ThoughtLimits(
        thought_tokens=env.thought_tokens,
        suffix_tokens=env.suffix_tokens,
        stops=env.stops,
        inserts=env.close == "inserted",
    )
    if tokenizer is not None:
        check_writable(tokenizer, (THINK.open, THINK.close))
    renderer = None if tokenizer is None else Renderer(tokenizer)
    return ThoughtSetting(
        dialect=DIALECTS["sleuth"],
        prompt_name="",
        prompt="",
        prompt_role="raw",
        template=None,
        limits=limits,
        opening_tag=tag_piece(THINK.open, renderer),
        closing_tag=tag_piece(THINK.close, renderer),
    )


def played_tasks(stage: GrpoRecipe, tokenizer: PreTrainedTokenizerFast | None) -> list[Task]:
    """What the episodes of a stage are about. A tokenizer that does not exist yet cuts no texts: then the first
    document is read, and no task is told."""
    if isinstance(stage.data, QuestionsRecipe):
        return select_tasks(stage.data)
    if tokenizer is None:
        next(read_documents(stage.data.texts), None)
        return []
    return [spot.task for spot in spots_of(stage.data, tokenizer)]


def spots_of(data: TextRecipe | PlacesRecipe, tokenizer: PreTrainedTokenizerFast) -> list[Spot]:
    """The first `data.limit` places to think at. Raises SleuthError where there is none."""
    if isinstance(data, TextRecipe):
        return [Spot(task=task) for task in excerpts_of(data, tokenizer).tasks]
    spots = list(islice(_spots(data, Renderer(tokenizer)), data.limit))
    if not spots:
        raise SleuthError(
            f"{data.texts}: no document of the part brings a thought with {data.least_before} tokens before it and "
            f'{data.least_behind} behind; `sleuth annotate thoughts` adds thoughts, and kind = "text" needs none'
        )
    return spots


def _spots(data: PlacesRecipe, renderer: Renderer) -> Iterator[Spot]:
    for document in read_documents(data.texts):
        if data.part in (None, part_of(document.origin)) and not has_tags(document.text):
            yield from islice(_of_document(document, data, renderer), 1)


def _of_document(document: Document, data: PlacesRecipe, renderer: Renderer) -> Iterator[Spot]:
    for number, thought in enumerate(document.thoughts):
        before = plain_tokens(renderer, document.text[: thought.at])
        behind = plain_tokens(renderer, document.text[thought.at :])
        if len(before) < data.least_before or len(behind) < data.least_behind or not before or not behind:
            continue
        prefix = interleaved_tokens(document, renderer, until=number)[-data.prefix_tokens :]
        yield Spot(
            task=_task(document, renderer, prefix, behind[: data.suffix_tokens], before[-data.prefix_tokens :]),
            teacher=thought.text,
        )


def _task(document: Document, renderer: Renderer, prefix: list[int], suffix: list[int], text: list[int]) -> Task:
    """Whoever judges is shown the text alone, without earlier thoughts."""
    read, behind = (decode(renderer.tokenizer, tokens) for tokens in (prefix, suffix))
    return Task(
        id=document.id,
        question=decode(renderer.tokenizer, text),
        golden_answers=document.golden_answers,
        kind=document.kind,
        source=document.source,
        reference=behind,
        continuation=Continuation(
            document=document.id,
            prefix=Segment(author="source", tokens=tuple(prefix), text=read),
            suffix=Segment(author="source", tokens=tuple(suffix), text=behind),
        ),
    )
