"""`sleuth check`: recipes, sweeps, judges and protocols before a run; data, models, scorers have their own files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sleuth.cli.check_data import check_corpus, check_data, check_index, check_texts
from sleuth.cli.check_model import check_model
from sleuth.cli.check_scorer import check_scorer
from sleuth.own.permission import CODE
from sleuth.terminal.options import AsJson, CheckNoCode, RecipeFile
from sleuth.terminal.tables import Column, print_columns
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.exam_card import ExamCard, SkillMark
    from sleuth.evaluation.intervals import Measured
    from sleuth.recipe import Recipe
    from sleuth.types import Task


class CheckCommands(TyperGroup):
    """Asks for the kind of what is checked, where a command line names a file alone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from sleuth.recipe.shipped import shipped_recipe

            first, *others = map(quote, args)
            if others and not args[1].startswith("-"):
                right = f"sleuth check protocols {first} {others[0]}"
            elif args[0].endswith(".toml") or shipped_recipe(Path(args[0])) is not None:
                right = f"sleuth check recipe {first} (of several runs: sleuth check sweep {first})"
            elif Path(args[0]).is_dir():
                right = f"sleuth check model {first}"
            else:
                right = f"sleuth check data {first} (of texts without questions: sleuth check texts {first})"
            raise SleuthError(f"sleuth check {first}: say what it is; use {right}")
        return super().resolve_command(ctx, args)


check = typer.Typer(cls=CheckCommands, no_args_is_help=True, rich_markup_mode=None)


@check.callback()
def _check() -> None:
    """Check a recipe, data, a model or a judge before a run."""


@check.command("recipe")
def check_recipe(
    recipe: RecipeFile,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Send the model's weights to the servers of its pools too.")
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
    from sleuth.training.engines import check_pool, pooled_stages, send_weights

    warnings: list[str] = []
    questions = require_inputs(resolved, warnings.append)
    steps = resolved.steps
    found: dict[str, Any] = {"ok": True, "stages": len(resolved.stage), "steps": steps}
    found |= {"warnings": warnings} if warnings else {}
    lines = [f"ok: {_count(len(resolved.stage), 'stage')}, {_count(steps, 'step')}"]
    lines += [f"warning: {line}" for line in warnings]
    for index, name, skipped, total in _skipped(resolved, questions):
        found.setdefault("skipped", {})[name] = skipped
        lines.append(f"warning: stage.{index} ({name}): {skipped:,} of {total:,} rows are too long and are skipped")
    if resolved.card is not None:
        fits, line = _fit(resolved, resolved.card)
        found |= {"card": resolved.card, "fits": fits}
        lines.append(line)
    if line := CODE.skipped_line():
        found["not_checked"] = CODE.refused
        lines.append(f"warning: {line}")
    problem = None
    pooled = pooled_stages(resolved) if resolved.model else []
    if weights and not pooled:
        raise SleuthError("--weights is for a recipe in which servers generate: a stage with a [stage.engine] table")
    for index in pooled:
        name = f"stage.{index} ({resolved.stage[index].name})"
        servers = check_pool(resolved, index)
        found.setdefault("pools", {})[resolved.stage[index].name] = [asdict(server) for server in servers]
        lines += [
            f"{'ok' if server.ok else 'problem'}: {name}: {server.url}: {server.line} ({server.seconds:.1f} s)"
            for server in servers
        ]
        if bad := [server for server in servers if not server.ok]:
            problem = problem or f"{name}: {len(bad)} of {len(servers)} servers of the pool cannot be used"
        elif weights:
            seconds = send_weights(resolved, index)
            lines.append(f"ok: {name}: all took the model's weights, and generate with them ({seconds:.1f} s)")
            found["seconds_weights"] = seconds
    if problem is not None:
        found["ok"] = False
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))
    if problem is not None:
        raise SleuthError(problem)


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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with [[arm]] tables.", show_default=False)],
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Check that a sweep can run, and count its steps."""
    from sleuth.recipe.sweep import load_sweep, unshared_steps
    from sleuth.terminal.recipe_inputs import missing_inputs

    recipe, runs = load_sweep(file, look=missing_inputs)
    require_sweep_inputs(file, runs)
    steps, seeds = sum(unshared_steps(runs).values()), len(recipe.seeds)
    line = CODE.skipped_line()
    if as_json:
        found = {"ok": True, "arms": len(runs), "seeds": seeds, "steps": steps * seeds}
        typer.echo(json.dumps(found | ({"not_checked": CODE.refused} if line else {})))
    else:
        typer.echo(f"ok: {len(runs)} arms with {seeds} seeds, {steps * seeds:,} steps; shared steps are counted once")
        if line:
            typer.echo(f"warning: {line}")


def require_sweep_inputs(path: Path, runs: Mapping[str, Recipe]) -> None:
    """Reads all that the arms will need. Raises SleuthError, which names the arm."""
    import_heavy()
    from sleuth.cli.pipeline import require_inputs

    for name, run in runs.items():
        try:
            require_inputs(run)
        except SleuthError as error:
            raise SleuthError(*(f'{path}: arm "{name}": {problem}' for problem in error.args)) from None


check.command("data")(check_data)
check.command("texts")(check_texts)
check.command("corpus")(check_corpus)
check.command("index")(check_index)
check.command("scorer")(check_scorer)
check.command("model")(check_model)


@check.command("judge")
def check_judge(
    file: Annotated[
        Path, typer.Argument(metavar="JUDGE.toml", help="A file with a [judge] table.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Examine a judge on questions with known answers, in all that a reward can ask of it.

    Prints what it gets wrong and what biases it. Exit status 1 where it fails.
    """
    from sleuth.recipe.load import load_judge
    from sleuth.terminal.recipe_inputs import missing_inputs

    recipe = load_judge(file, missing_inputs)

    import_heavy()
    from sleuth.evaluation.judge_exam import take_exam
    from sleuth.judges.factory import judge_of
    from sleuth.terminal.progress import progress_bar

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
    shown = [
        Column(heading="right", cells=[_share(mark.accuracy) for mark in marks.values()]),
        Column(heading="n", cells=[f"{mark.accuracy.n:,}" for mark in marks.values()]),
        Column(heading="worst kind", cells=[_worst(mark) for mark in marks.values()]),
    ]
    print_columns([skill.replace("_", " ") for skill in marks], shown, heading="asked for")
    effects = {"position": card.position, "length": card.length, "instructions": card.obedience}
    effect = Column(heading="effect on a score, 0 is none", cells=[_share(effect) for effect in effects.values()])
    print_columns(list(effects), [effect], heading="biased by")
    console.print(f"another verdict when asked again: {_share(card.changed)}")
    console.print(f"no verdict: {_share(card.silent)}")
    console.print(f"{card.questions:,} questions, {card.calls:,} calls, {card.seconds:.1f} seconds")
    for line in card.faults:
        console.print(f"this judge {line}")
    if card.weak:
        console.print(f"this judge is too often wrong about: {', '.join(card.weak)}")
    weak = [skill.replace("_", " ") for skill, mark in card.skills.items() if mark.weak]
    unpaid = f" on {', '.join(weak)}" if not card.faults else ""
    console.print("passed" if card.passed else f"failed: its verdicts{unpaid} should not be paid for", style="bold")


def _worst(mark: SkillMark) -> str:
    """`negation: 0.41`; empty where all kinds are judged right."""
    right = mark.kinds[mark.worst].value or 0.0
    return f"{mark.worst.replace('_', ' ')}: {right:.2f}" if right < 1 else ""


@check.command("protocols")
def check_protocols(
    a: Annotated[Path, typer.Argument(metavar="A", help="A checkpoint.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Compare the protocols and rewards of two checkpoints."""
    from sleuth.episodes.protocol_differences import differences

    found = differences(_read_protocol(a), _read_protocol(b))
    if as_json:
        typer.echo(json.dumps({"same": not found, "differences": found}))
    elif found:
        typer.echo("\n".join([f"A is {a}", f"B is {b}", *found]))
    else:
        typer.echo("the protocols are the same")


def _read_protocol(checkpoint: Path) -> ProtocolCard:
    from sleuth.episodes.protocol import FILE, ProtocolCard
    from sleuth.runs.checkpoints import latest_checkpoint

    card = ProtocolCard.read(checkpoint)
    if card is not None:
        return card
    last = latest_checkpoint(checkpoint / "checkpoints")
    example = f"this run's last one is {last}" if last else "give one that Sleuth saved, RUN/checkpoints/step-000100"
    raise SleuthError(f"{checkpoint}: not a checkpoint with a protocol: it has no {FILE}; {example}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _share(figure: Measured | None) -> str:
    """`0.94 (0.80 to 0.98)`; empty where nothing was measured."""
    return "" if figure is None else figure.formatted(".2f", unmeasured="")
