"""Families: what models learn. Each lists the kinds of tables that it adds to recipes.

`kind` in a stage, an environment, a reward, a judge or a table of data chooses the class of that table. Which kinds
there are is decided by the families in `OURS` alone. Their values are `module:name`, imported when a recipe first names
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

Part = Literal[
    "stages",
    "environments",
    "rewards",
    "preferences",
    "judges",
    "credits",
    "data",
    "held_out",
    "dialects",
    "texts",
    "layouts",
    "skills",
]
"""What a family may bring: the tables of a recipe that are chosen by their `kind`, and other things by their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a model learns, or what all of them need: for each part the table of each kind, as `module:name`.

    `Family(name="think", about="...", rewards={"gain": "sleuth.think.rewards:GainRecipe"})`.
    """

    name: str
    about: str
    """One sentence for people who choose."""
    stages: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    rewards: Mapping[str, str] = field(default_factory=dict)
    preferences: Mapping[str, str] = field(default_factory=dict)
    """Rewards of candidates, in stages that compare them."""
    judges: Mapping[str, str] = field(default_factory=dict)
    credits: Mapping[str, str] = field(default_factory=dict)
    """Credit for parts of episodes."""
    data: Mapping[str, str] = field(default_factory=dict)
    held_out: Mapping[str, str] = field(default_factory=dict)
    """What a supervised stage measures and never trains."""
    dialects: Mapping[str, str] = field(default_factory=dict)
    """Those that a recipe can name."""
    other_dialects: tuple[str, ...] = ()
    """Those that environments choose by other keys, as `module:name`."""
    initial_weights: Mapping[str, str] = field(default_factory=dict)
    """By the key of `[stage.init]` that asks for it: a function (model, init, tokenizer, seed) that overwrites some of
    the random weights."""
    thoughtless: tuple[str, ...] = ()
    """Names of dialects in which no turn begins with a thought."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Kinds of rows of text about a generated world: a `sleuth.world.text.WorldText` each."""
    world_files: str = ""
    """What it adds to the files of `sleuth world`: a `sleuth.world.write_world.WorldFiles`, as `module:name`."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Layouts of rows that are read besides ours, from `sleuth.data.layouts`."""
    skills: Mapping[str, str] = field(default_factory=dict)
    """What a judge may be asked: a function each, which makes the questions of its exam from true and spoiled texts."""


OURS = (
    "sleuth.family:CORE",
    "sleuth.search:FAMILY",
    "sleuth.think:FAMILY",
    "sleuth.cite:FAMILY",
    "sleuth.read:FAMILY",
)
"""The families that ship with Sleuth."""


def kinds(part: Part) -> dict[str, str]:
    """The kinds of a part, with the `module:name` of each table, ours in the order of `OURS`."""
    return {kind: name for family in _families() for kind, name in getattr(family, part).items()}


@cache
def table(part: Part, kind: str) -> Any:
    """The class of the tables of a kind. Raises KeyError if there is no such kind."""
    return named(kinds(part)[kind])


def tables(part: Part) -> list[Any]:
    """The classes of all tables of a part."""
    return [table(part, kind) for kind in kinds(part)]


def other_dialects() -> list[Any]:
    """The dialects that no recipe names."""
    return [named(name) for family in _families() for name in family.other_dialects]


def initial_weights(init: Any) -> list[Any]:
    """The functions that the keys of a table `[stage.init]` ask for."""
    chosen = [item for family in _families() for item in family.initial_weights.items()]
    return [named(name) for key, name in chosen if getattr(init, key)]


def thoughtless() -> set[str]:
    """The names of all dialects in which no turn begins with a thought."""
    return {name for family in _families() for name in family.thoughtless}


def world_files() -> list[Any]:
    """What the families add to the files of a world; the last family comes first."""
    return [named(family.world_files) for family in reversed(_families()) if family.world_files]


@cache
def _families() -> tuple[Family, ...]:
    return tuple(map(named, OURS))


def named(name: str) -> Any:
    """What is called `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


CORE = Family(
    name="core",
    about="Training and measuring of any kind: questions, texts, functions and tools of one's own.",
    stages={
        "supervised": "sleuth.recipe.supervised:SupervisedRecipe",
        "grpo": "sleuth.recipe.grpo:GrpoRecipe",
        "evaluate": "sleuth.recipe.evaluation:EvaluateRecipe",
    },
    environments={
        "python": "sleuth.episodes.tables:FunctionEnvRecipe",
    },
    rewards={
        "answer": "sleuth.answers.tables:AnswerRewardRecipe",
        "token_f1": "sleuth.answers.tables:TokenF1Recipe",
        "format": "sleuth.answers.tables:FormatRecipe",
        "python": "sleuth.answers.tables:FunctionRewardRecipe",
    },
    judges={
        "lexical": "sleuth.judges.tables:LexicalJudgeRecipe",
        "http": "sleuth.judges.tables:HttpJudgeRecipe",
    },
    data={
        "": "sleuth.recipe.data:PlayedQuestionsRecipe",
        "world_text": "sleuth.recipe.data:WorldTextRecipe",
        "text": "sleuth.recipe.text:TextRecipe",
        "rows": "sleuth.recipe.data:AnsweredRowsRecipe",
    },
)
