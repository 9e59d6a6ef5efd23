"""Which verbs there are, and how each may end."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from sleuth.cli.annotate import annotate
from sleuth.cli.arms import arms
from sleuth.cli.check import check
from sleuth.cli.compare import compare
from sleuth.cli.demo import demo
from sleuth.cli.eval import evaluate
from sleuth.cli.index import index
from sleuth.cli.merge import merge
from sleuth.cli.plan import plan
from sleuth.cli.probe import probe
from sleuth.cli.prompts import prompts
from sleuth.cli.replay import replay
from sleuth.cli.report import report
from sleuth.cli.rescore import rescore
from sleuth.cli.retriever import retriever
from sleuth.cli.search import search
from sleuth.cli.serve import serve
from sleuth.cli.statuses import FAILED, INTERRUPTED, WRONG_INPUT
from sleuth.cli.train import train
from sleuth.cli.world import world
from sleuth.types import RetrievalFailed, SleuthError


class Verbs(TyperGroup):
    """Turns what a verb raises into one line and an exit status. A traceback means a bug of ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SleuthError as error:
            raise _ending(f"error: {error}", WRONG_INPUT) from None
        except RetrievalFailed as error:
            raise _ending(f"error: {error}", FAILED) from None
        except BrokenPipeError:  # the reader of our output has seen enough; typer ends quietly
            raise
        except OSError as error:  # a full disk, a folder that may not be written
            raise _ending(f"error: {error.filename or 'system'}: {error.strerror or error}", FAILED) from None
        except KeyboardInterrupt:
            raise _ending("interrupted", INTERRUPTED) from None


def _ending(line: str, status: int) -> typer.Exit:
    typer.echo(line.replace("\n", " "), err=True)
    return typer.Exit(status)


app = typer.Typer(
    cls=Verbs,
    help="Train small language models to search, think and cite.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = {
    "demo": demo,
    "train": train,
    "arms": arms,
    "eval": evaluate,
    "compare": compare,
    "probe": probe,
    "index": index,
    "search": search,
    "retriever": retriever,
    "serve": serve,
    "report": report,
    "world": world,
    "plan": plan,
    "check": check,
    "merge": merge,
    "replay": replay,
    "rescore": rescore,
}
for name, verb in VERBS.items():
    app.command(name)(verb)
app.add_typer(prompts, name="prompts")
app.add_typer(annotate, name="annotate")
