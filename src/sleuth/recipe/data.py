"""`[stage.data]`: the world texts, questions and answered rows that a stage reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth import family
from sleuth.recipe.strict import FilePath, KindTable, NameOf, Row, StrictModel, combination
from sleuth.types import Task

Fed = tuple[Literal["rows", "episodes", "thoughts"], ...]


ROW = 512
"""Tokens of a row where the recipe does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of one sequence: at most `limit`; typically a `prompt`, which siblings share, and a `response`, of which
    the policy samples `sampled`."""

    limit: int
    prompt: int
    response: int
    sampled: int

    @classmethod
    def of_text(cls, prefix: int, suffix: int) -> Lengths:
        """Of texts that are as long as they may be."""
        return cls(limit=prefix + suffix, prompt=prefix, response=suffix, sampled=suffix)

    @property
    def typical(self) -> int:
        """Tokens of a typical sequence."""
        return self.prompt + self.response


class DataFields(KindTable):
    """What differs between tables of data."""

    feeds: ClassVar[Fed] = ("rows",)
    """What a stage makes of it: rows to imitate, episodes to play, or thoughts to measure."""
    rows: ClassVar[str] = "sleuth.training.sft_rows"
    """The module that makes its rows for a stage, `training_rows`, and checks the stage for them, `require_texts`."""
    trainer: ClassVar[str] = "sleuth.training.sft"
    """The module whose `run(stage, context)` trains its rows."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        """What a stage plays or thinks about. Without a tokenizer texts are not cut: only the first document is read,
        and no task is returned."""
        raise NotImplementedError

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        """Of its rows, in a supervised stage of the recipe."""
        return Lengths.of_text(0, ROW)


class WorldTextRecipe(DataFields):
    """Rows of text about a generated world. They are generated from the recipe's seed; no file is needed."""

    kind: Literal["world_text"]
    people: PositiveInt
    """Number of people in the world."""
    mix: Annotated[dict[Annotated[str, NameOf("texts")], PositiveFloat], Field(min_length=1)]
    """Sampling weight of each kind of row, relative to the others."""
    distracted: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rows of kinds "reading", "twins", "lookup" and "episode" whose passages end beside the point: in
    sentences of other passages, single words, or one word repeated."""

    @combination
    def _passages_to_distract(self) -> Iterator[str]:
        showing = [kind for kind in family.kinds("texts") if family.table("texts", kind).shows_passages]
        if self.distracted and self.mix.keys().isdisjoint(showing):
            yield f"distracted needs rows that show passages; the mix has none of {', '.join(showing)}"


AskWith = Literal["question", "prompt"]
"""What replaces {question} in an environment's prompt: the question, or the row's whole message."""


class QuestionsRecipe(DataFields):
    """Questions with their golden answers."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file"}
    questions: FilePath
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE."""
    kinds: Row[str] = ()
    """Use only questions of these kinds; empty: all."""
    limit: PositiveInt | None = None
    """Use only the first `limit` of them; absent: all."""
    ask_with: AskWith = "question"
    """What replaces {question} in the prompt: the question, or the whole user message that the row contains (as in
    Search-R1's parquet files); prompt = "bare" consists of {question} alone."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """What becomes of rows whose prompt leaves no room for a whole turn in `context`, or whose answer is longer than a
    turn: refuse the recipe, or skip them. Their number is printed, and stored in `manifest.json`."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        return family.load_named("sleuth.data.questions:select_tasks")(self)


class PlayedQuestionsRecipe(QuestionsRecipe):
    """Questions that a `grpo` stage plays, and how it draws them."""

    feeds: ClassVar[Fed] = ("episodes",)
    draw: Literal["shuffled", "by_difficulty"] = "shuffled"
    """Order of the questions. "shuffled": every question once in each epoch. "by_difficulty": likewise, but a question
    whose running rate is outside `rate_bounds` is drawn with probability `floor` only. The rate of a question is the
    mean score of its episodes, averaged over about the last two times that it was played: with a reward of exact match,
    its share of right answers. A question not played yet is drawn, unless the rate of its kind (`type`) in its source,
    over about the last 32 groups, is above the bounds."""
    rate_bounds: Annotated[tuple[float, float], Field(strict=False)] = (0.1, 0.9)
    """With draw = "by_difficulty": lowest and highest rate of the questions that are always drawn."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """With draw = "by_difficulty": probability that any other question is drawn when its turn comes; 1: as likely as
    the others."""
    mix: Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None
    """With draw = "by_difficulty": share of each source (`data_source` of the rows) among the questions drawn, as
    weights relative to one another; absent: sources are not distinguished."""

    @combination
    def _draw_fits(self) -> Iterator[str]:
        low, high = self.rate_bounds
        if low > high:
            yield f"rate_bounds = [{low:g}, {high:g}] leaves no rate between them; put the lower bound first"
        if self.draw == "shuffled":
            for key in ("rate_bounds", "floor", "mix"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    yield f'{key} has no effect with draw = "shuffled"; set draw = "by_difficulty"'


class AnsweredRowsRecipe(QuestionsRecipe):
    """Rows with an answer each, which is taught as the response to the prompt."""

    kind: Literal["rows"]

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        env, context = recipe.refine_env_and_context(index)
        return env.lengths(context or ROW, self)


class EvalQuestionsRecipe(StrictModel):
    """The questions of an evaluation: one file, or a suite of test sets."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file", "suite": "suite"}
    questions: FilePath | None = None
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE."""
    kinds: Row[str] = ()
    """Use only questions of these kinds; empty: all."""
    limit: PositiveInt | None = None
    """Use only the first `limit` of them; absent: all."""
    ask_with: AskWith = "question"
    """What replaces {question} in the prompt: the question, or the whole user message that the row contains."""
    suite: FilePath | None = None
    """Instead of `questions`: a folder of test sets (`nq/test.jsonl`, ...), here or on the hub, or a suite by name."""
    per_set: PositiveInt | None = None
    """Ask only `per_set` questions of each set, chosen by a hash of their ids, so that the choice never changes."""

    @combination
    def _one_source(self) -> Iterator[str]:
        if self.questions is None and self.suite is None:
            yield "questions is missing: name a file of them, or a suite of test sets"
        if self.questions is not None and self.suite is not None:
            yield "suite and questions are both given; remove one of them"
        file_only = {"kinds": self.kinds, "limit": self.limit, "ask_with": self.ask_with == "prompt"}
        for key in (name for name, given in file_only.items() if given and self.suite is not None):
            yield f"{key} needs a file of questions; for a suite, set per_set"
        if self.per_set is not None and self.suite is None:
            yield f"per_set = {self.per_set} needs a suite; for a file of questions, set limit"
