"""Finds code in README.md, CONTRIBUTING.md and docs/ that does not match the package: commands, keys, files, modules.

A block of commands is fenced as `sh`. One that a test cannot run says why in a comment above it, `<!-- needs: hub -->`
(or card, cluster, network, server), and one that takes minutes says `<!-- run: slow -->`.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from typer.main import get_command

from sleuth.cli.app import app
from sleuth.recipe import Recipe, load_recipe
from sleuth.recipe.load import JudgeFile, RewardFile, TeacherFile
from sleuth.recipe.published import PublishedSystem
from sleuth.recipe.shipped import shipped_recipe
from sleuth.recipe.strict import models_in
from sleuth.recipe.sweep import SweepRecipe, is_sweep, load_sweep
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[1]
COMMAND: Any = get_command(app)
FILES = (Recipe, SweepRecipe, JudgeFile, RewardFile, TeacherFile)
"""The models of a block of TOML, which may be a part of one."""
DIARY = ROOT / "docs" / "lab.md"
"""Its prose is not checked: an entry names what existed on its day."""
NEEDS = ("card", "cluster", "hub", "network", "server")
"""The reasons for which no test runs a block."""
_FENCE = re.compile(r"(?:^<!-- (needs|run): (\w+) -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_ENDS = {"&", "&&", "|", ";", ">", ">>", "2>", "<"}
_PATH = re.compile(r"(?:benchmarks|models|recipes|src|tests|tools)/[\w./-]*\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. `needs` is one of NEEDS, or empty; a `slow` one takes minutes."""

    file: Path
    line: int
    language: str
    text: str
    needs: str = ""
    slow: bool = False

    @property
    def where(self) -> str:
        """`docs/quickstart.md:12`."""
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README.md, CONTRIBUTING.md and every hand-written page of the site."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(file: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = file.read_text(encoding="utf-8")
    return [
        Block(
            file=file,
            line=text.count("\n", 0, found.start(3)) + 1,
            language=found[3],
            text=found[4],
            needs=found[2] if found[1] == "needs" else "",
            slow=found[1] == "run" and found[2] == "slow",
        )
        for found in _FENCE.finditer(text)
    ]


def problems(file: Path) -> list[str]:
    """The problems of a page, each a line that begins with file and line number."""
    found = []
    for block in blocks(file):
        messages = []
        if block.needs not in ("", *NEEDS):
            messages.append(f"needs: {block.needs}: should be one of {', '.join(NEEDS)}")
        if block.language == "toml":
            messages += _toml_problems(block.text)
        elif block.language == "sh":
            messages += [problem for line in _lines(block.text) for problem in _line_problems(line)]
        elif any(line.startswith("sleuth ") for line in block.text.splitlines()):
            messages.append("has a command and is not fenced as sh")
        found += [f"{block.where}: {problem}" for problem in messages]
    text = file.read_text(encoding="utf-8") if file != DIARY else ""
    prose = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for span in _SPAN.finditer(prose):
        line = prose.count("\n", 0, span.start()) + 1
        found += [
            f"{file.relative_to(ROOT)}:{line}: {problem}" for problem in _span_problems(" ".join(span[1].split()))
        ]
    return found + [f"{file.relative_to(ROOT)}:{problem}" for problem in _table_key_problems(prose)]


# -- commands ----------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[list[str]]:
    """The words of each line of a script, without comments; lines that end in a backslash are joined."""
    return [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]


def _line_problems(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        end = next((index for index, other in enumerate(rest) if other in _ENDS), len(rest))
        arguments = [other for other in rest[:end] if not re.fullmatch(r"\[.*\]", other)]
        if word == "sleuth" or word.endswith("/sleuth"):
            yield from _command_problems(arguments)
        elif word == "make":
            yield from _make_problems(arguments)
        elif word.endswith("python") and arguments[:1] == ["-m"]:
            yield from _module_problems(arguments[1])
        elif _PATH.fullmatch(word) and Path(word).suffix in (".py", ".toml") and not (ROOT / word).exists():
            yield f"{word}: there is no such file"


def _command_problems(arguments: Sequence[str]) -> Iterator[str]:
    """Parses the arguments of `sleuth` as the command line does, and applies every `--set` to its recipe."""
    command, names = COMMAND, ["sleuth"]
    while arguments and arguments[0] in getattr(command, "commands", ()):
        command, names, arguments = command.commands[arguments[0]], [*names, arguments[0]], arguments[1:]
    name = " ".join(names)
    if hasattr(command, "commands") and arguments:
        yield f"{name} has no {arguments[0]}"
        return
    try:
        parsed = command.make_context(name, list(arguments))
    except Exception as error:  # its class lies elsewhere in each version of typer
        message: str = getattr(error, "format_message", error.__str__)()
        yield f"{name}: {message.splitlines()[0]}"
        return
    overrides = parsed.params.get("overrides") or ()
    if overrides and "recipe" in parsed.params:
        yield from _override_problems(Path(parsed.params["recipe"]), overrides)


def _override_problems(recipe: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Applies `--set` to a recipe of the repository; for a reader's own, checks that some recipe could have the key."""
    file = ROOT / recipe if (ROOT / recipe).is_file() else shipped_recipe(recipe)
    if file is not None:
        try:
            (load_sweep if is_sweep(file) else load_recipe)(file, overrides)
        except SleuthError as error:
            yield str(error)
        return
    for text in overrides:
        key, _, value = text.partition("=")
        first, *rest = key.split(".")
        try:
            table = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table = value
        for part in reversed(rest[1:] if first == "stage" else rest):
            table = {part: table}
        yield from (f"--set {text}: {problem}" for problem in _table_problems({first: table}, FILES))


def _span_problems(code: str) -> Iterator[str]:
    """Checks code in a sentence, where values may be left out: command, options, make targets, files and modules."""
    words = code.replace("[", " ").replace("]", " ").split()
    if re.match(r"sleuth [a-z]", code):
        command, rest = COMMAND, words[1:]
        while rest and rest[0] in getattr(command, "commands", ()):
            command, rest = command.commands[rest[0]], rest[1:]
        if command is COMMAND:
            yield f"sleuth has no {words[1]}"
            return
        known = {"--help", "-h"} | {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        for word in (word.partition("=")[0].rstrip(",;") for word in rest):
            if re.fullmatch(r"--?[a-z][a-z-]*", word) and word not in known:
                yield f"{words[0]} {words[1]} has no option {word}"
    elif words[:1] == ["make"]:
        yield from _make_problems(words[1:])
    elif words[:2] == ["python", "-m"]:
        yield from _module_problems(words[2])
    elif _PATH.fullmatch(code) and not (ROOT / code).exists():
        yield f"{code}: there is no such file"
    elif re.fullmatch(r"sleuth(\.\w+)+", code):
        yield from _module_problems(code)


def _make_problems(arguments: Sequence[str]) -> Iterator[str]:
    targets = re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in arguments:
        fits = any(re.fullmatch(target.replace("%", ".+"), word) for target in targets)
        if re.fullmatch(r"[a-z][\w-]*", word) and not fits:
            yield f"make {word}: the Makefile has no such target"


def _module_problems(name: str) -> Iterator[str]:
    """Checks a name such as `sleuth.types.Task` or `benchmarks.recall`; modules of other packages are not checked."""
    if name.split(".")[0] == "benchmarks":
        if not (ROOT / f"{name.replace('.', '/')}.py").exists() and name != "benchmarks":
            yield f"{name}: there is no such module"
    elif name.split(".")[0] == "sleuth":
        module, _, attribute = name.rpartition(".")
        if _spec(name) is None and not (_spec(module) and hasattr(importlib.import_module(module), attribute)):
            yield f"{name}: there is no such module, and nothing of that name in one"


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


# -- recipes -----------------------------------------------------------------------------------------------------------


def _toml_problems(text: str) -> Iterator[str]:
    """Checks a recipe, another TOML file of the package, or a part of one, where a line `...` stands for omitted
    keys."""
    try:
        table = tomllib.loads(re.sub(r"^\.\.\.$", "", text, flags=re.MULTILINE))
    except tomllib.TOMLDecodeError as error:
        yield f"not valid TOML: {error}"
        return
    for name in ("extends", "set"):
        table.pop(name, None)
    yield from _table_problems(table, (*FILES, PublishedSystem))


def _table_problems(table: Mapping[str, Any], models: Sequence[type[BaseModel]]) -> list[str]:
    """The problems with the model that fits best: of those with the fewest unknown keys, the one with the fewest."""
    named = [model for model in models if table.get("kind", "") == kind_of(model)]
    unknown = min(len(table.keys() - model.model_fields.keys()) for model in named or models)
    fitting = [model for model in named or models if len(table.keys() - model.model_fields.keys()) == unknown]
    return min((_problems_under(table, model) for model in fitting), key=len)


def _problems_under(table: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    found = []
    for key, value in table.items():
        if (field := model.model_fields.get(key)) is None:
            found.append(f"{key} is no key of {model.__name__}")
            continue
        tables = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
        if inner := models_in(field):
            below = [problem for one in tables for problem in _table_problems(one, inner)]
            found += [f"{key}.{problem}".replace(".: ", ": ") for problem in below]
    return found or _validation_problems(table, model)


def _validation_problems(table: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Pydantic's errors, except for keys that a part of a recipe omits and `[stage.env]` without a `[[stage]]`
    above."""
    try:
        model.model_validate(table)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors()
            if problem["type"] not in ("missing", "union_tag_not_found")
            and not (problem["type"] == "tuple_type" and isinstance(problem["input"], dict))
            and not (problem["loc"][-1:] == ("reward",) and isinstance(problem["input"], str))  # those of another stage
            and not (problem["type"] == "too_short" and problem["input"])  # no entry is complete
        ]
    return []


def kind_of(model: type[BaseModel]) -> str | None:
    """What a table names as its kind; None where the key says nothing about the table, or may have several values."""
    field = model.model_fields.get("kind")
    values = get_args(field.annotation) if field is not None else ()
    return values[0] if len(values) == 1 else None


def _table_key_problems(text: str) -> Iterator[str]:
    """Checks that code in a table's column "key" or "ours" is a key of some recipe. A column "ours" may also contain
    words of the first column, from any row of the page."""
    known, column = {key for model in _all_models(FILES) for key in model.model_fields}, None
    theirs = set(re.findall(r"\w+", " ".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE))))
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) < 3:
            column = None
        elif column is None:
            column = next((at for at, cell in enumerate(cells) if cell.startswith("key") or cell == "ours"), 0)
        elif column:
            for code in _SPAN.findall(cells[column]):
                key = re.fullmatch(r"(?:\w+\.)*([a-z]\w*)(?: = .*)?", code)
                if key is not None and key[1] not in known | (theirs if column > 1 else set()):
                    yield f"{number}: {code} is no key of any recipe"


def _all_models(models: Sequence[type[BaseModel]]) -> set[type[BaseModel]]:
    inner = {one for model in models for field in model.model_fields.values() for one in models_in(field)}
    return {*models} | (_all_models([*inner]) if inner else set())
