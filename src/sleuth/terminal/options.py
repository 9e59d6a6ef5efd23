"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from sleuth import family
from sleuth.own.permission import BY_NO_ALLOW_CODE, BY_NO_CODE, CODE


def _find_model(model: str) -> str:
    from sleuth.recipe.shipped import find_model

    return find_model(model)


def recipe_completions(incomplete: str) -> list[str]:
    """The names of recipes that ship, and TOML files that begin so."""
    from sleuth.recipe.shipped import recipe_names

    return [*recipe_names(), *map(str, Path().glob(f"{incomplete}*.toml"))]


Model = Annotated[
    str,
    Argument(
        metavar="MODEL", callback=_find_model, help="A checkpoint, a model folder or a hub id.", show_default=False
    ),
]
Questions = Annotated[
    Path, Option(metavar="FILE", help="Questions: .jsonl, .jsonl.gz or .parquet.", show_default=False)
]
RecipeFile = Annotated[
    Path,
    Argument(
        metavar="RECIPE",
        help="A TOML file, or a name that `sleuth recipes` lists.",
        show_default=False,
        autocompletion=recipe_completions,
    ),
]


def _allow_unless(no_code: bool) -> bool:
    CODE.refusal = BY_NO_CODE if no_code else ""
    return no_code


def _check_without(no_code: bool) -> bool:
    CODE.skips = no_code
    return _allow_unless(no_code)


def _allow_if(allow_code: bool) -> bool:
    CODE.refusal = "" if allow_code else BY_NO_ALLOW_CODE
    return allow_code


NO_CODE = "Import no Python and start no command that the recipe names"
NoCode = Annotated[bool, Option("--no-code", callback=_allow_unless, help=f"{NO_CODE}; one that needs it is refused.")]
CheckNoCode = Annotated[
    bool, Option("--no-code", callback=_check_without, help=f"{NO_CODE}; what could not be checked is printed.")
]
AllowCode = Annotated[
    bool, Option("--allow-code", callback=_allow_if, help="Import the Python that a run or a checkpoint names.")
]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change one value of the recipe, such as grpo.steps=50."),
]
Quiet = Annotated[bool, Option("--quiet", help="Print only the result; DIR/log.txt has the rest.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]

# -- how a model is asked ----------------------------------------------------------------------------------------------

Index = Annotated[Path | None, Option(metavar="DIR", help="The index to search; without one, searches find nothing.")]
Retrievers = Annotated[
    list[str] | None,
    Option(metavar="URL", help="Search a server such as `sleuth retriever`; repeat it for each replica."),
]
Dialect = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The search protocol. [default: the model's own, or sleuth]",
        autocompletion=lambda: list(family.kinds("dialects")),
    ),
]
Prompt = Annotated[str | None, Option(metavar="NAME", help="A prompt's name, or a file. [default: the model's own]")]
PromptRole = Annotated[
    Literal["raw", "user", "system"] | None,
    Option(help="Give the prompt as it is, or as a chat message. [default: the model's own]"),
]
ForcedSearch = Annotated[bool | None, Option(help="Open the first search for the model. [default: as it was trained]")]
ClosedBook = Annotated[bool, Option(help="Control arm: open the answer for the model, and allow no search.")]
ContextTokens = Annotated[
    int | None, Option(min=1, help="Longest episode in tokens. [default: as the model was trained]")
]
Samples = Annotated[int, Option(min=1, help="Samples per question; several are drawn at temperature 1.")]
Scorer = Annotated[
    str | None,
    Option(metavar="NAME", help="Report this score beside strict exact match. [default: the training reward's]"),
]
Engine = Annotated[
    str | None,
    Option(metavar="URL", help="A server of MODEL, which is not loaded here: SGLang, vLLM, llama.cpp, Ollama."),
]
ServedAs = Annotated[
    str | None, Option(metavar="NAME", help="With --engine: the server's name for MODEL, if it differs.")
]
Slots = Annotated[int, Option(min=1, help="Turns generated at once at most, here or on the server.")]
Precision = Annotated[
    Literal["float32", "bfloat16"] | None,
    Option(help="Precision of the weights. [default: float32 on a CPU, as stored on a GPU]"),
]
Out = Annotated[Path | None, Option(metavar="FILE.json", help="Write the figures and all records to this JSON file.")]
