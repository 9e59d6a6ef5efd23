"""A hook of mkdocs: generates the reference pages from the code, and checks the pages that are written by hand.

Run `python -m mkdocs build` in the root of the checkout, so that the package `tools` is found.
"""

from __future__ import annotations

import csv
import inspect
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from sleuth import family
from sleuth.recipe import Recipe
from sleuth.recipe.load import JudgeFile, RewardFile, TeacherFile
from sleuth.recipe.strict import models_in
from sleuth.recipe.sweep import SweepRecipe
from sleuth.recipe.training import TrainingRecipe
from sleuth.runs.metrics import glossary
from tools.code_blocks import COMMAND, ROOT, kind_of, pages, problems

log = logging.getLogger("mkdocs.hooks.site_pages")  # a warning of mkdocs ends a strict build
OTHER_FILES: dict[str, type[BaseModel]] = {
    "A file of runs to compare": SweepRecipe,
    "A file that names a judge": JudgeFile,
    "A file that names rewards": RewardFile,
    "A file that names a teacher": TeacherFile,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and warns of code in the other pages that does not match the package."""
    written = {"cli": cli_page, "recipe": recipe_page, "recipes": recipes_page, "metrics": metrics_page}
    for name, write in written.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    for page in pages():
        for problem in problems(page):
            log.warning(problem)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Ends the page of a family with what it brings, from its record, and shows the tables that a line links to."""
    folder_of = (ROOT / "docs" / page.file.src_uri).parent
    markdown = re.sub(
        r"^\[[^]]*\]\((\S+\.csv)\)$", lambda link: csv_table(folder_of / link[1]), markdown, flags=re.MULTILINE
    )
    folder, _, name = page.file.src_uri.rpartition("/")
    return markdown if folder != "families" else f"{markdown}\n{parts_of_family(name.removesuffix('.md'))}"


def csv_table(file: Path) -> str:
    """The table of a CSV file, which GitHub shows by itself."""
    head, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def parts_of_family(name: str) -> str:
    """Tables of the kinds, dialects, figures and verbs of one of our families."""
    ours = family.load_named(f"sleuth.{name}:FAMILY")
    lines = ["## What it brings", "", "| part | name | what it is |", "|---|---|---|"]
    for part in get_args(family.Part):
        abouts = {kind: _first_sentence(family.load_named(place)) for kind, place in getattr(ours, part).items()}
        lines += [f"| {part.replace('_', ' ')} | `{kind}` | {about} |" for kind, about in abouts.items() if about]
        if unsaid := ", ".join(f"`{kind}`" for kind, about in abouts.items() if not about):
            lines.append(f"| {part.replace('_', ' ')} | {unsaid} | |")
    for section in ours.verbs.values():
        lines += [
            f"| verbs | `sleuth {verb}` | {_first_sentence(family.load_named(at))} |" for verb, at in section.items()
        ]
    rows = [row for place in ours.figures for row in family.load_named(place)]
    lines += [f"| figures | `{_cell(row.name)}` | {_cell(_escaped(row.meaning))} |" for row in rows]
    return "\n".join(lines)


def _first_sentence(found: Any) -> str:
    """The first sentence of what a class or function says of itself; nothing of a value."""
    written = inspect.getdoc(found) if inspect.isclass(found) or inspect.isfunction(found) else ""
    return _cell(_escaped(" ".join((written or "").partition("\n\n")[0].split()).partition(". ")[0]))


# -- command line ------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its arguments and options, from the command line's own tree; a table of all of them first."""
    lines = [
        "# Command line",
        "",
        "`sleuth COMMAND --help` prints the same as this page, which is generated from the code.",
    ]
    lines += ["", "| command | what it does |", "|---|---|"]
    for name, command in COMMAND.commands.items():
        lines += _summaries(f"sleuth {name}", command)
    lines.append("")
    for name, command in COMMAND.commands.items():
        lines += _command(f"sleuth {name}", command)
    return "\n".join(lines)


def _summaries(name: str, command: Any) -> Iterator[str]:
    """A row for a command, or for each command below it."""
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        about = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_escaped(about))} |"
    for verb, below in inner.items():
        yield from _summaries(f"{name} {verb}", below)


def _command(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"## `{name}` {{#{name.replace(' ', '-')}}}\n"
    yield f"{_escaped(inspect.cleandoc(command.help or ''))}\n"
    if not inner or command.invoke_without_command:
        yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    rows = [_option(parameter, context) for parameter in command.params]
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield "".join(f"| `{_cell(spelled)}` | {_cell(_escaped(meaning))} |\n" for spelled, meaning in rows)
    for verb, below in inner.items():
        yield from _command(f"{name} {verb}", below)


def _option(parameter: Any, context: Any) -> tuple[str, str]:
    spelled, meaning = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        spelled = parameter.metavar or parameter.name.upper()
    return spelled, meaning


# -- recipes -----------------------------------------------------------------------------------------------------------


def recipe_page() -> str:
    """Every key of a recipe, from the models that read it: what it may be, its default, its meaning."""
    tables = tables_of(Recipe)
    lines = [
        "# Recipe keys",
        "",
        "Every key that a recipe may have, generated from the classes that validate it. An unknown key is an error",
        "that names the nearest valid one. A key without a default may be left out, unless it is marked as required.",
        "",
        *_table("The recipe", "recipe", Recipe, tables),
        "## Stages {#stages}",
        "",
        "Each `[[stage]]` has a `kind`. All stages that train have the keys of the first table.",
        "",
        *_table("Every stage that trains", "stage", TrainingRecipe, tables),
    ]
    for model, way in tables.items():
        if model is not Recipe:
            lines += _table(_heading(way, model), _anchor(way, model), model, tables)
    for title, model in OTHER_FILES.items():
        lines += [f"## {title} {{#{model.__name__.lower()}}}", "", inspect.getdoc(model) or "", ""]
        lines += _rows(model, model.__name__.lower(), tables_of(model) | tables)
        for inner, way in tables_of(model).items():
            if inner not in tables and inner is not model:
                lines += _table(_heading(way, inner), _anchor(way, inner), inner, tables_of(model) | tables)
    return "\n".join(lines)


def tables_of(model: type[BaseModel], way: str = "") -> dict[type[BaseModel], str]:
    """Every table that a file may hold, with the first path to it: `stage.env`."""
    found = {model: way}
    for key, field in model.model_fields.items():
        for inner in models_in(field):
            found |= {
                table: at for table, at in tables_of(inner, f"{way}.{key}".strip(".")).items() if table not in found
            }
    return dict(sorted(found.items(), key=lambda item: item[1].count(".")))


def _heading(way: str, model: type[BaseModel]) -> str:
    kind = kind_of(model)
    written = f"[[{way}]]" if way in ("stage", "stage.reward", "arm", "reward") else f"[{way}]"
    return f'`{written}` `kind = "{kind}"`' if kind else f"`{written}`"


def _anchor(way: str, model: type[BaseModel]) -> str:
    """`stage.env.search`."""
    return ".".join(filter(None, (way or model.__name__.lower(), kind_of(model))))


def _table(heading: str, anchor: str, model: type[BaseModel], tables: Mapping[type[BaseModel], str]) -> list[str]:
    about = _escaped(re.sub(r"\n\n.*", "", inspect.getdoc(model) or "", flags=re.DOTALL))
    return [f"### {heading} {{#{anchor}}}", "", about, "", *_rows(model, anchor, tables)]


def _rows(model: type[BaseModel], anchor: str, tables: Mapping[type[BaseModel], str]) -> list[str]:
    shared = issubclass(model, TrainingRecipe) and model is not TrainingRecipe
    rows = ['<div class="keys" markdown>', "", "| key | value | default | meaning |", "|---|---|---|---|"]
    head = len(rows)
    schema = model.model_json_schema()
    known = {inner.__name__: inner for inner in tables}
    for key, field in model.model_fields.items():
        if key == "kind" or (shared and key in TrainingRecipe.model_fields and key not in model.__annotations__):
            continue
        value = _value(schema["properties"][key], known, tables)
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        rows.append(
            f"| [`{key}`](#{anchor}.{key}){{#{anchor}.{key}}} | {value} | {default} "
            f"| {_cell(_escaped(' '.join((field.description or '').split())))} |"
        )
    if len(rows) == head:
        return [f'Its only key is `kind = "{kind_of(model)}"`.', ""]
    more = ["", "It also has the keys of [every stage that trains](#stage)."] if shared else []
    return [*rows, "", "</div>", *more, ""]


def _value(schema: Mapping[str, Any], known: Mapping[str, type[BaseModel]], tables: Mapping[Any, str]) -> str:
    """`integer, at least 1`, from the JSON schema of a key."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        model = known[name]
        return f"[{_heading(tables[model], model) if kind_of(model) else 'table'}](#{_anchor(tables[model], model)})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            models = [known.get(one.get("$ref", "").rpartition("/")[2]) for one in schema[union]]
            kinds = [f"[`{kind_of(model)}`](#{_anchor(tables[model], model)})" for model in models if model]
            if len(kinds) == len(schema[union]) and all(kind_of(model) for model in models if model):
                return f"table of kind {', '.join(kinds[:-1])} or {kinds[-1]}"
            return " or ".join(_value(one, known, tables) for one in schema[union] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return (
            f"list of {_value(items, known, tables).replace('table of', 'tables of', 1)}"
            if items
            else f"list of {len(schema['prefixItems'])} numbers"
        )
    if kind == "object":
        return "table"
    words = {"string": "path" if schema.get("format") == "path" else "text", "boolean": "`true` or `false`"}
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{said} {schema[bound]:g}" for bound, said in bounds.items() if bound in schema]
    return ", ".join([words.get(str(kind), str(kind or "any")), *limits])


def _default(value: Any) -> str:
    if value is None or isinstance(value, BaseModel) or value in ("", (), {}):
        return ""
    if isinstance(value, tuple):
        value = [one.model_dump(exclude_defaults=True) if isinstance(one, BaseModel) else one for one in value]
    return f"`{_cell(json.dumps(value))}`"


def recipes_page() -> str:
    """The recipes of the checkout, whole."""
    lines = [
        "# Recipes that ship",
        "",
        "The first lines of each recipe name its source and where it departs from it. The tiny ones run on two cores.",
        "",
    ]
    for folder, title in (("recipes", "Real models"), ("recipes/tiny", "Tiny models")):
        lines += [f"## {title}", ""]
        for file in sorted((ROOT / folder).glob("*.toml")):
            text = file.read_text(encoding="utf-8").rstrip()
            lines += [f"### `{folder}/{file.name}` {{#{file.stem.replace('.', '')}}}", "", "```toml", text, "```", ""]
    return "\n".join(lines)


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """Every figure of `metrics.jsonl`, from the glossary beside the code that writes it."""
    lines = [
        "# Metrics",
        "",
        "A run writes one JSON object a step to `metrics.jsonl`; a figure that was not measured is null or absent.",
        "",
    ]
    for title, figures in glossary().items():
        lines += [f"## {title}", "", "| figure | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(_escaped(meaning))} |" for name, meaning in figures.items()]
        lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text with markdown's special characters escaped outside of code."""
    parts = text.split("`")
    return "`".join(re.sub(r"([<*_\[\]])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts))


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
