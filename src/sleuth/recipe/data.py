"""`[stage.data]`: the world texts, questions, answered rows and documents that a stage reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth import family
from sleuth.recipe.strict import FilePath, KindTable, NameOf, Row, StrictModel, combination
from sleuth.types import Task

Fed = tuple[Literal["rows", "episodes", "thoughts"], ...]


ROW = 512
"""Tokens of a row where the recipe does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of one sequence: at most `limit`; typically a `prompt`, which siblings share, and a `response`, of which
    the policy samples `sampled`, with so many `searches`."""

    limit: int
    prompt: int
    response: int
    sampled: int
    searches: int = 0

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
    rows: ClassVar[str] = "sleuth.training.sft"
    """The module that makes its rows for a stage, `training_rows`, and checks the stage for them, `require_texts`."""
    trainer: ClassVar[str] = "sleuth.training.sft"
    """The module whose `run(stage, context)` trains its rows."""
    one_process: ClassVar[str] = ""
    """Why several ranks cannot play it; empty: they can."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        """What a stage plays or thinks about. Without a tokenizer texts are not cut: only the first document is read,
        and no task is returned."""
        raise NotImplementedError

    def stream(self, taken: int, sha256: str) -> Any:
        """What it yields after the first `taken`, which have this hash; None where `tasks` are all of it."""

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


class ChosenQuestions(StrictModel):
    """The keys of all tables of questions."""

    questions: Any
    """Set by each class."""
    kinds: Row[str] = ()
    """Use only questions of these kinds; empty: all."""
    skip: NonNegativeInt = 0
    """Leave out the first `skip` of them, such as those that an evaluation keeps for itself."""
    limit: PositiveInt | None = None
    """Use only the first `limit` of them; absent: all."""
    ask_with: AskWith = "question"
    """What replaces {question} in the prompt: the question, or the whole user message that the row contains (as in
    Search-R1's parquet files); prompt = "bare" consists of {question} alone."""


class QuestionsRecipe(ChosenQuestions, DataFields):
    """Questions with their golden answers."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file"}
    questions: FilePath
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE, or the one file of a
    split, hf://OWNER/NAME/train."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """What becomes of rows whose prompt leaves no room for a whole turn in `context`, or whose answer is longer than a
    turn: refuse the recipe, or skip them. Their number is printed, and stored in `manifest.json`."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        return family.load_named("sleuth.data.questions:select_tasks")(self)


class PlayedQuestionsRecipe(QuestionsRecipe):
    """Questions that a `grpo` stage plays."""

    feeds: ClassVar[Fed] = ("episodes",)


class AnsweredRowsRecipe(QuestionsRecipe):
    """Rows with an answer each, which is taught as the response to the prompt."""

    kind: Literal["rows"]

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        env, context = recipe.refine_env_and_context(index)
        return env.lengths(context or ROW, self)


class EvalQuestionsRecipe(ChosenQuestions):
    """The questions of an evaluation: one file, or a suite of test sets."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file", "suite": "suite"}
    questions: FilePath | None = None
    """A .jsonl, .jsonl.gz or .parquet file of questions, here or on the hub: hf://OWNER/NAME/FILE."""
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
        file_only = {"kinds": self.kinds, "skip": self.skip, "limit": self.limit, "ask_with": self.ask_with == "prompt"}
        for key in (name for name, given in file_only.items() if given and self.suite is not None):
            yield f"{key} needs a file of questions; for a suite, set per_set"
        if self.per_set is not None and self.suite is None:
            yield f"per_set = {self.per_set} needs a suite; for a file of questions, set limit"


Part = Literal["sft", "rl", "held_out"]
"""The split of a document, decided by its origin alone."""


class DocumentsRecipe(StrictModel):
    """Documents of a file or folder."""

    named: ClassVar[Mapping[str, str]] = {"texts": "texts"}
    texts: FilePath
    """A .txt, .jsonl, .jsonl.gz or .parquet file, or a folder of them, here or on the hub: hf://OWNER/NAME/FILE."""
    part: Part | None = None
    """Use only documents of this split. Of a thousand origins about 500 are "sft", 438 "rl" and 62 "held_out"; each
    origin is in one split. Absent: all documents, for files that are already split."""
    limit: PositiveInt = 32_768
    """Use only the first `limit` documents."""


class ThoughtPlaces(DocumentsRecipe, DataFields):
    """Documents in which the policy thinks."""

    if TYPE_CHECKING:
        prefix_tokens: Any
        suffix_tokens: Any
        """Set by each class."""

    def tasks(self, tokenizer: Any) -> list[Task]:
        if tokenizer is None:
            next(family.load_named("sleuth.data.documents:read_documents")(self.texts), None)
            return []
        return self.cut(tokenizer)

    @abstractmethod
    def cut(self, tokenizer: Any) -> list[Task]:
        """The texts as tasks of continuing them."""


class TextRecipe(ThoughtPlaces):
    """Documents, cut into prefixes and their suffixes."""

    feeds: ClassVar[Fed] = ("rows", "episodes", "thoughts")
    kind: Literal["text"]
    prefix_tokens: PositiveInt = 384
    """Tokens of a prefix. Where the data gives the place to cut: the last tokens before it, at most this number."""
    suffix_tokens: PositiveInt = 128
    """Tokens of a suffix. Where the data gives the place to cut: the first tokens after it, at most this number."""
    least_tokens: PositiveInt | None = None
    """Minimum length of a document in tokens; absent: prefix_tokens + suffix_tokens."""
    windows: PositiveInt = 1
    """Maximum number of consecutive prefixes, each with its suffix, of one document."""

    def row_lengths(self, recipe: Any, index: int) -> Lengths:
        return Lengths.of_text(0, self.prefix_tokens + self.suffix_tokens)

    def cut(self, tokenizer: Any) -> list[Task]:
        return family.load_named("sleuth.data.excerpts:excerpts_of")(self, tokenizer).tasks

    @combination
    def _long_enough(self) -> Iterator[str]:
        window = self.prefix_tokens + self.suffix_tokens
        if self.least_tokens is not None and self.least_tokens < window:
            yield f"least_tokens = {self.least_tokens} is less than prefix_tokens + suffix_tokens = {window}"
