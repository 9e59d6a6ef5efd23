"""The verbs of thinking: `annotate thoughts`, `probe-thoughts`, `win-rate` and `reasoning`. The last three measure as
the first stage of that kind in a recipe says."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal import options
from sleuth.terminal.inputs import load_stage, prepare_out_file, require_inputs
from sleuth.terminal.options import AsJson, Model, NoCode, Out, RecipeFile
from sleuth.terminal.tables import Column, measured_in, print_columns, print_figures, table_cell
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.think.annotate import AnnotatedTexts

SHOWN_REASONS = 3
"""Reasons to show of why texts have no thoughts."""
GATE_TOKENS = 8_192
"""Tokens of one forward pass."""
THOUGHT_ARMS = ("sampled", "blank", "generic", "swapped", "within", "teacher")


def thoughts(
    texts: Annotated[Path, typer.Argument(metavar="TEXTS", help="A file of texts or a folder of them; hf://... too.")],
    teacher: Annotated[
        Path, typer.Option(metavar="FILE", help="A file with a [teacher] table: the model that writes the thoughts.")
    ],
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="The model to be trained: it tokenizes the texts and tests the thoughts."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE.parquet", help="The rows to write; an existing file is continued.")
    ],
    tokens: Annotated[int, typer.Option(min=8, help="Use the first so many tokens of each document.")] = 512,
    part: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Only documents of this part: sft, rl or held_out.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Annotate only so many documents.")] = 8_192,
    gate: Annotated[bool, typer.Option(help="Leave out sources whose thoughts do not help MODEL.")] = True,
    as_json: AsJson = False,
) -> None:
    """Let a teacher insert thoughts into texts.

    The teacher is asked for places and thoughts, and never copies the text. The thoughts of a source are kept if they
    make the text after them likelier, to the model to be trained, than an empty thought and than sentences that fit any
    text. A data card is written beside the rows.
    """
    from sleuth.host.model_path import require_model
    from sleuth.recipe.data import text_recipe
    from sleuth.recipe.load import load_teacher
    from sleuth.terminal.recipe_inputs import missing_inputs, require_texts

    resolved = text_recipe(texts, tokens=tokens, part=part, limit=limit)
    require_texts(texts)
    require_model(model)
    writing = load_teacher(teacher, missing_inputs)

    import_heavy()
    from sleuth.judges.factory import open_client
    from sleuth.learn.models import load_model
    from sleuth.render import Renderer
    from sleuth.runs.progress import progress_bar
    from sleuth.think.annotate import ThoughtWriter, annotate_thoughts
    from sleuth.think.thought_figures import LogprobScorer

    writer = ThoughtWriter(open_client(writing, out))
    loaded, tokenizer = load_model(model, dtype=None, device="auto")
    scorer = LogprobScorer(model=loaded, renderer=Renderer(tokenizer), budget=GATE_TOKENS)
    PROCESS.announce()
    found = annotate_thoughts(resolved, out, writer, scorer, gated=gate, watch=progress_bar)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        _print_annotated(found, out)
    if found.reasons:
        raise typer.Exit(1)


def _print_annotated(found: AnnotatedTexts, out: Path) -> None:
    answered = f", {found.known:,} of them answered before" if found.known else ""
    typer.echo(f"{out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{answered}; see {out.stem}.md")
    for gate in found.gates:
        over_blank, over_generic, verdict = gate.described("+.4f")
        typer.echo(f"{gate.named}: over empty {over_blank}, over generic {over_generic} nats a token: {verdict}")
    for reason, count in found.reasons.most_common(SHOWN_REASONS):
        typer.echo(f"{count:,} without thoughts: {reason}")
    if found.reasons:
        typer.echo("run the same command to ask for those again")


def probe_thoughts(
    model: options.Model,
    recipe: options.RecipeFile,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only so many places in texts. [default: as the recipe says]")
    ] = None,
    no_code: options.NoCode = False,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure whether a model's thoughts make true text likelier.

    Its own thoughts are compared with none, empty phrases, those of other texts, those of other places, and a
    teacher's, as the recipe's first stage of kind = "probe" says. The certificate is written to thoughts.json in the
    model's folder.
    """
    from sleuth.think.tables import ProbeRecipe

    resolved, stage = load_stage(recipe, ProbeRecipe)
    require_inputs([model])
    if limit is not None:
        stage = stage.model_copy(update={"data": stage.data.model_copy(update={"limit": limit})})
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.judges.factory import JudgePool
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.thought_probe import probe_thoughts as probe_model
    from sleuth.think.thought_probe import require_spots, write_certificate

    thinker = load_named(model, resolved)
    require_spots(stage, thinker.tokenizer, thinker.max_positions)
    PROCESS.announce()
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        found = probe_model(stage, thinker, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **found})
    certificate = write_certificate(model, contents)
    if out is not None:
        write_eval(out, contents)
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print_arms(figures, certificate)


def _print_arms(figures: dict[str, Any], file: Path | None) -> None:
    """One line per arm: its gain, by how much the model's own thoughts beat it, and the share of suffixes equivalent to
    the true one; then the certificate, and its `file`."""
    measured = measured_in(figures)
    headings = {"gain": "gain", "over": "own over it", "right": "right", "right_over": "own over it"}
    by_arm = {arm: [measured.get(f"{name}_{arm}") for name in headings] for arm in THOUGHT_ARMS}
    counts = {arm: count for arm, named in by_arm.items() if (count := next((one.n for one in named if one), None))}
    columns = [
        Column(heading=heading, cells=[table_cell(by_arm[arm][at]) for arm in counts])
        for at, heading in enumerate(headings.values())
    ]
    columns.append(Column(heading="n", cells=[f"{count:,}" for count in counts.values()]))
    typer.echo(f"thoughts of {figures['model']}, in nats a token of the true suffix")
    print_columns(list(counts), columns, heading="arm")
    left = measured["blank_nll"].formatted()
    typer.echo(f"An empty thought leaves {left} to gain. Intervals are of 95 %, over documents.")
    needed = {name: count for name, count in figures["documents_needed"].items() if count}
    counts = ", ".join(f"{name} {count:,}" for name, count in needed.items())
    typer.echo(f"Documents that would show differences of this size, in four of five cases: {counts or 'not known'}.")
    certificate = figures["certificate"]
    typer.echo(f"{'PASS' if certificate['passes'] else 'No certificate'}: {certificate['claim']}.")
    if file is not None:
        typer.echo(f"{file}: the certificate")


def win_rate(
    model: Model,
    recipe: RecipeFile,
    against: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="The other model. [default: the recipe's model]"),
    ] = None,
    no_code: NoCode = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the continuations of two models, as a recipe says.

    The texts and the judge are those of the recipe's first stage of kind = "win_rate".
    """
    from sleuth.think.preference_tables import WinRateRecipe

    resolved, stage = load_stage(recipe, WinRateRecipe)
    other = against or resolved.model
    if not other:
        raise SleuthError(f"{recipe}: begins with random weights; name the other model: --against MODEL")
    require_inputs([model, other])
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.judges.factory import JudgePool
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.pools import require_pools
    from sleuth.think.win_rate import compare_writers

    ours, theirs = (load_named(name, resolved) for name in (model, other))
    require_pools(stage, ours.tokenizer, min(ours.max_positions, theirs.max_positions))
    PROCESS.announce()
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        compared = compare_writers(stage, ours, theirs, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **compared})
    figures = {name: value for name, value in contents.items() if name != "records"}
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print_win_rate(figures)
    if out is not None:
        write_eval(out, contents)


def _print_win_rate(figures: dict[str, Any]) -> None:
    print_figures(f"{figures['model']} against {figures['against']}", measured_in(figures))
    typer.echo(
        f"wins {figures['wins']}, ties {figures['ties']}, losses {figures['losses']}, without a verdict "
        f"{figures['no_verdict']}; sign test p = {figures['p']:.2g}; judged by {figures['judged_by']['kind']}"
    )


def reasoning(
    model: Model, recipe: RecipeFile, no_code: NoCode = False, out: Out = None, as_json: AsJson = False
) -> None:
    """Ask a model problems, several answers to each.

    The problems, samples and answers are those of the recipe's first stage of kind = "reason". Prints the figures of
    each set and their means; --out writes each set beside FILE.json, as FILE@SET.json.
    """
    from sleuth.think.tables import ReasonRecipe

    resolved, stage = load_stage(recipe, ReasonRecipe)
    require_inputs([model])
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.runs.eval_file import with_digests, write_eval
    from sleuth.think.reasoning import require_problems, solve_problems

    solver = load_named(model, resolved)
    require_problems(stage, solver.tokenizer, solver.max_positions)
    PROCESS.announce()
    found = solve_problems(stage, solver, seed=resolved.seed)
    *_, suite = found
    found = {name: with_digests(contents) for name, contents in found.items()}
    for name, contents in found.items() if out is not None else ():
        assert out is not None
        place = out if name == suite else out.with_name(f"{out.stem}@{name.partition('@')[2]}.json")
        write_eval(place, {"name": name, **contents})
    if as_json:
        typer.echo(json.dumps({"name": Path(model).name, **found[suite]}))
        return
    for name, contents in found.items():
        print_figures(f"{model}, {name}", measured_in(contents))
