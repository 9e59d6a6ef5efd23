"""The verbs of thinking, `probe-thoughts` and `win-rate`, which measure as the first stage of that kind in a recipe
says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.host.threads import PROCESS
from sleuth.terminal.inputs import load_stage, prepare_out_file, require_inputs
from sleuth.terminal.options import AsJson, Model, NoCode, Out, RecipeFile
from sleuth.terminal.tables import print_figures, show_measured
from sleuth.training.heavy import import_heavy
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from sleuth.judges.factory import JudgePool


def probe_thoughts(
    model: Model,
    recipe: RecipeFile,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only so many places in texts. [default: as the recipe says]")
    ] = None,
    no_code: NoCode = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure whether a model's thoughts make true text likelier.

    Its own thoughts are compared with none, empty phrases, those of other texts, and a teacher's, as the recipe's first
    stage of kind = "probe" says. The certificate is a part of the file of --out.
    """
    from sleuth.think.tables import ProbeRecipe

    resolved, stage = load_stage(recipe, ProbeRecipe)
    require_inputs([model])
    if limit is not None:
        stage = stage.model_copy(update={"data": stage.data.model_copy(update={"limit": limit})})
    prepare_out_file(out)

    import_heavy()
    from sleuth.evaluation.eval_session import load_named
    from sleuth.runs.eval_file import with_digests
    from sleuth.think import thought_probe

    thinker = load_named(model, resolved)
    thought_probe.require_spots(stage, thinker.tokenizer, thinker.max_positions)
    with _judging() as judge_pool:
        found = thought_probe.probe_thoughts(stage, thinker, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **found})
    show_measured(contents, out, as_json, lambda: _print_arms(contents))


def _print_arms(contents: Mapping[str, Any]) -> None:
    from sleuth.evaluation.intervals import measured_in

    measured = measured_in(contents)
    print_figures(f"thoughts of {contents['model']}, in nats a token of the true suffix", measured)
    left = measured["blank_nll"].formatted()
    typer.echo(f"An empty thought leaves {left} to gain. Intervals are of 95 %, over documents.")
    certificate = contents["certificate"]
    typer.echo(f"{'PASS' if certificate['passes'] else 'No certificate'}: {certificate['claim']}.")


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
    from sleuth.runs.eval_file import with_digests
    from sleuth.think.pools import require_pools
    from sleuth.think.win_rate import compare_writers

    ours, theirs = (load_named(name, resolved) for name in (model, other))
    require_pools(stage, ours.tokenizer, min(ours.max_positions, theirs.max_positions))
    with _judging() as judge_pool:
        compared = compare_writers(stage, ours, theirs, judge_pool, seed=resolved.seed)
    contents = with_digests({"name": Path(model).name, **compared})
    show_measured(contents, out, as_json, lambda: _print_win_rate(contents))


def _print_win_rate(contents: Mapping[str, Any]) -> None:
    from sleuth.evaluation.intervals import measured_in

    print_figures(f"{contents['model']} against {contents['against']}", measured_in(contents))
    typer.echo(
        f"wins {contents['wins']}, ties {contents['ties']}, losses {contents['losses']}, without a verdict "
        f"{contents['no_verdict']}; sign test p = {contents['p']:.2g}; judged by {contents['judged_by']['kind']}"
    )


@contextmanager
def _judging() -> Iterator[JudgePool]:
    """Judges that keep their verdicts only until they are done."""
    from sleuth.judges.factory import JudgePool

    PROCESS.announce()
    with tempfile.TemporaryDirectory() as folder, JudgePool(Path(folder) / "verdicts.sqlite") as judge_pool:
        yield judge_pool
