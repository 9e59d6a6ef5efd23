"""Families: what models learn. Each lists the kinds of tables that it adds to recipes.

`kind` in a stage, an environment, a reward, a judge or a table of data chooses the class of that table. Which kinds
there are is decided by the families in `OURS`, those that a recipe names in `families`, and those of installed packages
with an entry point in the group `sleuth.families`. Their values are `module:name`, imported when a recipe first names
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar

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
    "outcomes",
]
"""What a family may bring: the tables of a recipe that are chosen by their `kind`, and other things by their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a model learns, or what all of them need: for each part the table of each kind, as `module:name`.

    `Family(name="think", about="...", rewards={"gain": "sleuth.think.tables:GainRecipe"})`.
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
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """By an entry that only its records of answers have: a function of such a record, its mode of
    `sleuth.answers.failures`."""
    figures: tuple[str, ...] = ()
    """Tuples of rows of the table of figures, as `module:name`."""
    verbs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Verbs of the command line by the section of its help, `{"Evaluate": {"probe": "sleuth.search.verbs:probe"}}`,
    each a function or a `typer.Typer`. `annotate rubrics` is the verb `rubrics` of the group `annotate`."""


OURS = (
    "sleuth.family:CORE",
    "sleuth.search:FAMILY",
    "sleuth.think:FAMILY",
    "sleuth.cite:FAMILY",
    "sleuth.read:FAMILY",
)
"""The families that ship with Sleuth."""


OTHERS: dict[str, Family] = {}
"""The families of others, by `module:name`; `sleuth.own.families` adds them."""
INSTALLED = "sleuth.own.families:use_installed"
"""What adds those of installed packages."""


_FORGET: list[Callable[[], None]] = []
_Found = TypeVar("_Found", bound=Callable[..., Any])


def cached(find: _Found) -> _Found:
    """`functools.cache` for what is found in the families: it is emptied when those of others change."""
    kept: Any = cache(find)
    _FORGET.append(kept.cache_clear)
    return kept


def knows(part: Part, kind: str) -> bool:
    """Whether there is such a kind, perhaps of an installed package."""
    if kind not in kinds(part):
        load_named(INSTALLED)()
    return kind in kinds(part)


def knows_dialect(name: str) -> bool:
    """Whether a family has a dialect of this name, also one that no recipe names."""
    return any(one.name == name for one in other_dialects()) or knows("dialects", name)


def verbs() -> dict[str, dict[str, str]]:
    """The verbs of all families, by section."""
    found: dict[str, dict[str, str]] = {}
    for family in all_families():
        for section, named in family.verbs.items():
            found.setdefault(section, {}).update(named)
    return found


def kinds(part: Part) -> dict[str, str]:
    """The kinds of a part, with the `module:name` of each table, ours in the order of `OURS`."""
    return {kind: name for family in all_families() for kind, name in getattr(family, part).items()}


@cached
def table(part: Part, kind: str) -> Any:
    """The class of the tables of a kind. Raises KeyError if there is no such kind."""
    return load_named(kinds(part)[kind])


def tables(part: Part) -> list[Any]:
    """The classes of all tables of a part."""
    return [table(part, kind) for kind in kinds(part)]


def other_dialects() -> list[Any]:
    """The dialects that no recipe names."""
    return [load_named(name) for family in all_families() for name in family.other_dialects]


def initial_weights(init: Any) -> list[Any]:
    """The functions that the keys of a table `[stage.init]` ask for."""
    chosen = [item for family in all_families() for item in family.initial_weights.items()]
    return [load_named(name) for key, name in chosen if getattr(init, key)]


def thoughtless() -> set[str]:
    """The names of all dialects in which no turn begins with a thought."""
    return {name for family in all_families() for name in family.thoughtless}


def world_files() -> list[Any]:
    """What the families add to the files of a world; the last family comes first."""
    return [load_named(family.world_files) for family in reversed(all_families()) if family.world_files]


def figures() -> list[Any]:
    """The rows of figures of all families, in their order."""
    return [row for family in all_families() for name in family.figures for row in load_named(name)]


@cached
def all_families() -> tuple[Family, ...]:
    """Ours, then those of others."""
    return (*map(load_named, OURS), *OTHERS.values())


def changed() -> None:
    """Forgets what was found before `OTHERS` changed."""
    for forget in _FORGET:
        forget()


def load_named(name: str) -> Any:
    """Imports what `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


CORE = Family(
    name="core",
    about="Training and measuring of any kind: questions, texts, functions and tools of one's own.",
    stages={
        "supervised": "sleuth.recipe.training:SupervisedRecipe",
        "grpo": "sleuth.recipe.grpo:GrpoRecipe",
        "evaluate": "sleuth.recipe.stage:EvaluateRecipe",
    },
    environments={
        "python": "sleuth.episodes.tables:FunctionEnvRecipe",
        "agent": "sleuth.episodes.tables:AgentEnvRecipe",
    },
    rewards={
        "answer": "sleuth.answers.tables:AnswerRewardRecipe",
        "token_f1": "sleuth.answers.tables:TokenF1Recipe",
        "format": "sleuth.answers.tables:FormatRecipe",
        "python": "sleuth.answers.tables:FunctionRewardRecipe",
        "environment": "sleuth.answers.tables:EnvironmentRewardRecipe",
    },
    judges={
        "lexical": "sleuth.judges.tables:LexicalJudgeRecipe",
        "http": "sleuth.judges.tables:HttpJudgeRecipe",
    },
    data={
        "": "sleuth.recipe.data:PlayedQuestionsRecipe",
        "world_text": "sleuth.recipe.data:WorldTextRecipe",
        "text": "sleuth.recipe.data:TextRecipe",
        "rows": "sleuth.recipe.data:AnsweredRowsRecipe",
        "python": "sleuth.data.streamed:StreamRecipe",
    },
    figures=("sleuth.evaluation.figures:FIGURES",),
    verbs={
        "Train": {
            "demo": "sleuth.cli.demo:demo",
            "init": "sleuth.cli.init:init",
            "learn": "sleuth.cli.learn:learn",
            "recipes": "sleuth.cli.shipped:recipes",
            "train": "sleuth.cli.train:train",
            "sweep": "sleuth.cli.sweep:sweep",
            "reproduce": "sleuth.cli.reproduce:reproduce",
            "plan": "sleuth.cli.plan:plan",
            "check": "sleuth.cli.check:check",
        },
        "Evaluate": {
            "eval": "sleuth.cli.eval:evaluate",
            "certify": "sleuth.cli.certify:certify",
        },
        "Inspect runs": {
            "watch": "sleuth.cli.report:watch",
            "report": "sleuth.cli.report:report",
            "compare": "sleuth.cli.report:compare",
            "replay": "sleuth.cli.replay:replay",
            "rescore": "sleuth.cli.replay:rescore",
        },
        "Search": {
            "get": "sleuth.cli.get:get",
            "index": "sleuth.cli.index:index",
            "search": "sleuth.cli.index:search",
            "retriever": "sleuth.cli.serve:retriever",
        },
        "Use a model": {
            "ask": "sleuth.cli.ask:ask",
            "serve": "sleuth.cli.serve:serve",
            "merge": "sleuth.cli.convert:merge",
            "export": "sleuth.cli.convert:export",
        },
        "Make data": {
            "world": "sleuth.cli.shipped:world",
            "prompts": "sleuth.cli.shipped:prompts",
        },
    },
)
