"""README.md of a checkpoint, written from the run: no figure in it was typed by a person."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.recipe import Recipe, StageRecipe
from sleuth.recipe.toml_writer import emit_value
from sleuth.runs.protocol import ProtocolCard

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Evaluation -> figure -> {"value", "low", "high", "n"}: `results["trained"]["em"]["value"]`."""


def model_card(
    recipe: Recipe, *, stage: int, step: int, checkpoint: Path, protocol: ProtocolCard | None, results: Results
) -> str:
    """The card of `step` of the recipe's stage number `stage`. `results` may be empty: then the card says so."""
    trained = recipe.stage[stage]
    lines = [
        *("---", "library_name: transformers", "pipeline_tag: text-generation"),
        *("tags:", "- sleuth", f"- {trained.kind}", "---", ""),
        *(f"# {recipe.name}, step {step} of stage `{trained.name}`", ""),
        *(f"Trained with Sleuth {__version__} {_origin(recipe, stage)}.", ""),
        *("## Measured", "", *_measured(results), ""),
        *("```", f"sleuth eval {checkpoint}", "```", ""),
        *("## Training", "", *_table(("key", "value"), _settings(recipe, trained, step)), ""),
    ]
    if protocol is not None:
        lines += ["## Protocol", "", *_protocol(protocol), ""]
    return "\n".join(lines)


def read_results(eval_folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """The measured figures of every evaluation of a run, by its name."""
    return {
        path.stem: {
            name: figure
            for name, figure in json.loads(path.read_text(encoding="utf-8")).items()
            if isinstance(figure, dict) and {"value", "low", "high", "n"} <= figure.keys()
        }
        for path in sorted(eval_folder.glob("*.json"))
    }


def _origin(recipe: Recipe, stage: int) -> str:
    first = recipe.stage[0]
    from_scratch = first.kind == "supervised" and first.init is not None
    start = "from random weights" if from_scratch else f"from `{recipe.model}`"
    before = [f"`{earlier.name}`" for earlier in recipe.stage[:stage] if earlier.kind != "evaluate"]
    return start + (f", after {', '.join(before)}" if before else "")


def _measured(results: Results) -> list[str]:
    rows = [
        (
            evaluation,
            name,
            _number(figure["value"]),
            f"{_number(figure['low'])} to {_number(figure['high'])}",
            figure["n"],
        )
        for evaluation, figures in results.items()
        for name, figure in figures.items()
    ]
    if not rows:
        return ["Nothing has been measured yet."]
    return [
        *_table(("evaluation", "figure", "value", "95 % interval", "n"), rows),
        "",
        "The latest evaluations of the run at the time of this save.",
    ]


def _settings(recipe: Recipe, trained: StageRecipe, step: int) -> list[tuple[Any, ...]]:
    run = {"seed": recipe.seed, "dtype": recipe.dtype, "step": step}
    rows = [*run.items(), *_flat(trained.model_dump(exclude_none=True), "")]
    return [(f"`{key}`", f"`{emit_value(value)}`") for key, value in rows]


def _protocol(protocol: ProtocolCard) -> list[str]:
    """The prompt stands in an indented block, because a prompt may hold any fence."""
    figures = protocol.model_dump(exclude={"prompt_text"}, exclude_none=True) | {"hash": protocol.hash}
    return [
        *_table(("key", "value"), [(f"`{key}`", f"`{emit_value(value)}`") for key, value in _flat(figures, "")]),
        *("", "The prompt, byte for byte in `protocol.json`:", ""),
        *(f"    {line}" for line in protocol.prompt_text.splitlines()),
    ]


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    cells = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells]


def _flat(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3f}"
