"""`sleuth check`: recipes, sweeps, models, judges, scorers and protocols before a run; data has a file of its own."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sleuth.cli.check_data import check_corpus, check_data, check_index, check_texts
from sleuth.own.permission import CODE
from sleuth.terminal.inputs import naming
from sleuth.terminal.options import AsJson, CheckNoCode, Model, NoCode, Overrides, RecipeFile
from sleuth.terminal.tables import Column, count_of, print_columns, show, with_interval
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.exam_card import ExamCard, SkillMark
    from sleuth.recipe import Recipe
    from sleuth.types import Task


check = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@check.callback()
def _check() -> None:
    """Check a recipe, data, a model or a judge before a run."""


@check.command("recipe")
def check_recipe(
    recipe: RecipeFile,
    overrides: Overrides = None,
    weights: Annotated[
        bool, Option("--weights", help="Send the model's weights to the servers of its pools too.")
    ] = False,
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Check that a recipe can run; starts no stage.

    Reads all that its stages will need, imports and calls the Python that it names, and computes whether it fits the
    cards that it names. Where servers generate its episodes, asks each what it can do.
    """
    from sleuth.recipe import load_recipe
    from sleuth.terminal.recipe_inputs import missing_inputs

    resolved = load_recipe(recipe, overrides or (), look=missing_inputs)

    import_heavy()
    from sleuth.cli.pipeline import require_inputs
    from sleuth.training.engines import pooled_stages

    warnings: list[str] = []
    questions = require_inputs(resolved, warnings.append)
    record: dict[str, Any] = {"ok": True, "stages": len(resolved.stage), "steps": resolved.steps}
    record |= {"warnings": warnings} if warnings else {}
    lines = [f"ok: {count_of(len(resolved.stage), 'stage')}, {count_of(resolved.steps, 'step')}"]
    lines += [f"warning: {line}" for line in warnings]
    for index, name, skipped, total in _skipped(resolved, questions):
        record.setdefault("skipped", {})[name] = skipped
        lines.append(f"warning: stage.{index} ({name}): {skipped:,} of {total:,} rows are too long and are skipped")
    if resolved.card is not None:
        fits, line = _fit(resolved, resolved.card)
        record |= {"card": resolved.card, "fits": fits}
        lines.append(line)
    if line := CODE.skipped_line():
        record["not_checked"] = CODE.refused
        lines.append(f"warning: {line}")
    pooled = pooled_stages(resolved) if resolved.model else []
    if weights and not pooled:
        raise SleuthError("--weights is for a recipe in which servers generate: a stage with a [stage.engine] table")
    problems = [_pool_problem(resolved, index, weights, record, lines) for index in pooled]
    problem = next(filter(None, problems), None)
    show(as_json, record | {"ok": problem is None}, *lines)
    if problem is not None:
        raise SleuthError(problem)


def _pool_problem(recipe: Recipe, index: int, weights: bool, record: dict[str, Any], lines: list[str]) -> str | None:
    """Asks the servers of a stage, adds what they answer to the record and the lines, and sends `weights` to healthy
    ones; what is wrong with them."""
    from sleuth.training.engines import check_pool, send_weights

    stage = recipe.stage[index].name
    servers = check_pool(recipe, index)
    record.setdefault("pools", {})[stage] = [asdict(server) for server in servers]
    for one in servers:
        level = "ok" if one.ok else "problem"
        lines.append(f"{level}: stage.{index} ({stage}): {one.url}: {one.line} ({one.seconds:.1f} s)")
    if bad := [server for server in servers if not server.ok]:
        return f"stage.{index} ({stage}): {len(bad)} of {len(servers)} servers of the pool cannot be used"
    if weights:
        record["seconds_weights"] = seconds = send_weights(recipe, index)
        took = f"all took the model's weights, and generate with them ({seconds:.1f} s)"
        lines.append(f"ok: stage.{index} ({stage}): {took}")
    return None


def _skipped(recipe: Recipe, questions: Mapping[int, Sequence[Task]]) -> Iterator[tuple[int, str, int, int]]:
    """(index, name, skipped rows, all rows) of each stage that skips some."""
    from sleuth.data.questions import select_tasks
    from sleuth.episodes.fitting import skips

    for index, stage in enumerate(recipe.stage):
        data = getattr(stage, "data", None)
        if index in questions and skips(data) and len(questions[index]) < (total := len(select_tasks(data))):
            yield index, stage.name, total - len(questions[index]), total


def _fit(recipe: Recipe, card: str) -> tuple[bool | None, str]:
    """Whether a recipe fits the cards that it names, by the plan, and a line that says so; None if that is unknown."""
    from sleuth.host.hardware import read_cards
    from sleuth.plan.fit import plan_for_cards

    try:
        planned = plan_for_cards(recipe, read_cards(card))
    except SleuthError as error:
        return None, f'warning: card = "{card}": {error}'
    return planned.fits, f"{'ok' if planned.fits else 'warning'}: {planned.line()}"


@check.command("sweep")
def check_sweep(
    file: Annotated[Path, Argument(metavar="FILE", help="A TOML file with [[arm]] tables.", show_default=False)],
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Check that a sweep can run, and count its steps."""
    from sleuth.recipe.sweep import load_sweep, own_stages
    from sleuth.terminal.recipe_inputs import missing_inputs

    recipe, runs = load_sweep(file, look=missing_inputs)
    require_sweep_inputs(file, runs)
    seeds = len(recipe.seeds)
    steps = seeds * sum(runs[name].stage[at].last_step for name, own in own_stages(runs).items() for at in own)
    record: dict[str, Any] = {"ok": True, "arms": len(runs), "seeds": seeds, "steps": steps}
    lines = [f"ok: {len(runs)} arms with {seeds} seeds, {steps:,} steps; shared steps are counted once"]
    if line := CODE.skipped_line():
        record["not_checked"] = CODE.refused
        lines.append(f"warning: {line}")
    show(as_json, record, *lines)


def require_sweep_inputs(path: Path, runs: Mapping[str, Recipe]) -> None:
    """Reads all that the arms will need. Raises SleuthError, which names the arm."""
    import_heavy()
    from sleuth.cli.pipeline import require_inputs

    for name, run in runs.items():
        with naming(f'{path}: arm "{name}"'):
            require_inputs(run)


for name, verb in {
    "data": check_data,
    "texts": check_texts,
    "corpus": check_corpus,
    "index": check_index,
}.items():
    check.command(name)(verb)


@check.command("model")
def check_model(
    model: Model,
    recipe: Annotated[
        Path | None, Option(metavar="FILE", help="Also check that this recipe's prompts, scorers and budgets fit.")
    ] = None,
    no_code: NoCode = False,
    as_json: AsJson = False,
) -> None:
    """Check a model's chat template, tool calls, tags and stop tokens.

    Reads its tokenizer and configs, never its weights, and prints a line for each finding with what would be right.
    Exit status 1 if one is a problem.
    """
    from sleuth.host.model_path import require_model
    from sleuth.recipe import load_recipe

    require_model(model)
    resolved = None if recipe is None else load_recipe(recipe)
    import_heavy()

    from sleuth.plan.model_check import findings_of

    began = time.monotonic()
    findings = findings_of(model, resolved)
    seconds = time.monotonic() - began
    levels = Counter(finding.level for finding in findings)
    record = {"model": model, "ok": not levels["problem"], "seconds": round(seconds, 1)}
    counts = f"{count_of(levels['problem'], 'problem')}, {count_of(levels['warning'], 'warning')} ({seconds:.1f} s)"
    show(as_json, record | {"findings": [asdict(one) for one in findings]}, *map(str, findings), counts)
    if levels["problem"]:
        raise typer.Exit(1)


@check.command("judge")
def check_judge(
    file: Annotated[Path, Argument(metavar="JUDGE.toml", help="A file with a [judge] table.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Examine a judge on all that a reward can ask of it.

    Prints what it gets wrong and what biases it. Exit status 1 where it fails.
    """
    from sleuth.recipe.load import load_judge
    from sleuth.terminal.recipe_inputs import missing_inputs

    recipe = load_judge(file, missing_inputs)

    import_heavy()
    from sleuth.evaluation.judge_exam import take_exam
    from sleuth.judges.factory import judge_of
    from sleuth.runs.progress import progress_bar

    opened = judge_of(recipe)
    with progress_bar("exam") as progress:
        card = take_exam(opened, progress=progress)
    below = card.below(recipe.required_accuracy)
    if as_json:
        typer.echo(json.dumps(card.as_json()))
    else:
        _print_exam(card)
        if below:
            skills = ", ".join(skill.replace("_", " ") for skill in below)
            typer.echo(
                f"below least_accuracy = {recipe.required_accuracy}: no recipe is trained by its verdicts on {skills}"
            )
    if below or not card.passed:
        raise typer.Exit(1)


def _print_exam(card: ExamCard) -> None:
    from sleuth.runs.progress import Console

    console = Console()
    console.print(card.judge)
    marks = card.skills
    columns = [
        Column(heading="right", cells=[with_interval(mark.accuracy) for mark in marks.values()]),
        Column(heading="n", cells=[f"{mark.accuracy.n:,}" for mark in marks.values()]),
        Column(heading="worst kind", cells=[_worst(mark) for mark in marks.values()]),
    ]
    print_columns([skill.replace("_", " ") for skill in marks], columns, heading="asked for")
    effects = {"position": card.position, "length": card.length, "instructions": card.obedience}
    effect = Column(heading="effect on a score, 0 is none", cells=[*map(with_interval, effects.values())])
    print_columns(list(effects), [effect], heading="biased by")
    console.print(f"another verdict when asked again: {with_interval(card.changed)}")
    console.print(f"no verdict: {with_interval(card.silent)}")
    console.print(f"{card.questions:,} questions, {card.calls:,} calls, {card.seconds:.1f} seconds")
    for line in card.faults:
        console.print(f"this judge {line}")
    if card.weak:
        console.print(f"this judge is too often wrong about: {', '.join(card.weak)}")
    weak = [skill.replace("_", " ") for skill, mark in marks.items() if mark.weak]
    unpaid = f" on {', '.join(weak)}" if not card.faults else ""
    console.print("passed" if card.passed else f"failed: its verdicts{unpaid} should not be paid for", style="bold")


def _worst(mark: SkillMark) -> str:
    """`negation: 0.41`; empty where all kinds are judged right."""
    right = mark.kinds[mark.worst].value or 0.0
    return f"{mark.worst.replace('_', ' ')}: {right:.2f}" if right < 1 else ""


SHOWN_CASES = 8
"""Cases on which scorers disagree that are shown."""


@check.command("scorer")
def check_scorer(
    file: Annotated[
        Path,
        Argument(metavar="CASES.jsonl", help="Rows of id, prompt, response and golden_answers.", show_default=False),
    ],
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per case.")] = False,
) -> None:
    """Score the same cases by every scorer and show disagreements."""
    from sleuth.answers.scorers import SCORERS
    from sleuth.answers.scorers.scorer import transcript_from_text
    from sleuth.data.rows import read_rows

    cases: list[tuple[Any, Mapping[str, float | None]]] = []
    for where, row in read_rows(file):
        id_, prompt, response, answers = _scorer_case(row, where)
        transcript = transcript_from_text(prompt, response)
        cases.append((id_, {name: one.score_transcript(transcript, answers) for name, one in SCORERS.items()}))
    if not cases:
        raise SleuthError(f"{file}: no cases in this file")
    if as_json:
        for id_, scores in cases:
            typer.echo(json.dumps({"id": id_, "scores": scores}))
        return
    known = {name: [value for _, scores in cases if (value := scores[name]) is not None] for name in SCORERS}
    means = [f"{sum(values) / len(values):.3f}" if values else "missing" for values in known.values()]
    reads = Column(heading="reads", cells=[scorer.view.label for scorer in SCORERS.values()], is_text=True)
    scored = Column(heading="scored", cells=[f"{len(values):,}" for values in known.values()])
    print_columns(list(SCORERS), [reads, Column(heading="mean", cells=means), scored], heading="scorer")
    differing = [one for one in cases if len({round(value, 9) for value in one[1].values() if value is not None}) > 1]
    typer.echo(f"scorers disagree on {len(differing):,} of {len(cases):,} cases")
    for id_, scores in differing[:SHOWN_CASES]:
        shown = (f"{name} {'missing' if value is None else f'{value:.3g}'}" for name, value in scores.items())
        typer.echo(f"{id_}: {', '.join(shown)}")


def _scorer_case(row: Mapping[str, Any], where: str) -> tuple[str | int, str, str, tuple[str, ...]]:
    """(id, prompt, response, golden answers) of a row; prompt and response may be empty. Raises SleuthError."""
    from sleuth.data.rows import texts_of

    id_, *texts = (row.get(key) for key in ("id", "prompt", "response"))
    if not isinstance(id_, str | int) or isinstance(id_, bool):
        raise SleuthError(f"{where}: `id` should be a string or a whole number")
    for key, text in zip(("prompt", "response"), texts, strict=True):
        if not isinstance(text, str):
            raise SleuthError(f"{where}: `{key}` should be a string, found {type(text).__name__}")
    if not (answers := texts_of(row.get("golden_answers"), "golden_answers", where)):
        raise SleuthError(f'{where}: `golden_answers` should be a list of strings such as ["Tarn"]')
    return id_, row["prompt"], row["response"], answers


@check.command("protocols")
def check_protocols(
    a: Annotated[Path, Argument(metavar="A", help="A checkpoint.", show_default=False)],
    b: Annotated[Path, Argument(metavar="B", help="Another.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Compare the protocols and rewards of two checkpoints."""
    from sleuth.episodes.protocol_differences import differences

    changes = differences(_read_protocol(a), _read_protocol(b))
    lines = [f"A is {a}", f"B is {b}", *changes] if changes else ["the protocols are the same"]
    show(as_json, {"same": not changes, "differences": changes}, *lines)


def _read_protocol(checkpoint: Path) -> ProtocolCard:
    from sleuth.episodes.protocol import FILE, ProtocolCard
    from sleuth.runs.checkpoints import latest_checkpoint

    card = ProtocolCard.read(checkpoint)
    if card is not None:
        return card
    last = latest_checkpoint(checkpoint / "checkpoints")
    example = f"this run's last one is {last}" if last else "give one that Sleuth saved, RUN/checkpoints/step-000100"
    raise SleuthError(f"{checkpoint}: not a checkpoint with a protocol: it has no {FILE}; {example}")
