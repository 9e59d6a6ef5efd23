"""`python -m benchmarks.failing_verdicts`: the refiner's tiny twin while half of its judge's verdicts fail.

Three runs of `recipes/tiny/refiner.toml` from the same supervised weights: with every verdict; with a judge that fails
in half of its calls, behind the verdict cache of a paid judge, which retries; and with failed verdicts counted as
zeros, as peers do. Reported is the claim F1 of the last weights by the world's exact table, without a judge.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from sleuth.cli.pipeline import run_recipe
from sleuth.judges.cache import VERDICT_RETRIES, CachedJudge, NamedJudge, RetryLimits, VerdictCache
from sleuth.judges.lexical import LexicalJudge
from sleuth.recipe import load_recipe
from sleuth.runs.checkpoints import latest_checkpoint
from sleuth.runs.run_folder import RunFolder
from sleuth.types import Case, Verdict
from sleuth.world.write_world import write_world

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny" / "refiner.toml"
FIGURES = ("claim_f1", "abstention_f1", "invented_ids")
FAILING = 0.5
RETRY_LIMITS = RetryLimits(retries=VERDICT_RETRIES)


class Unreliable(LexicalJudge):
    """The lexical judge with a share of failed verdicts, drawn for every case of every call."""

    def __init__(self, instead: Verdict, drawn: random.Random) -> None:
        self.instead = instead
        self.drawn = drawn

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """The parent's verdicts, some replaced by failures."""
        verdicts = await super().judge(cases)
        return [self.instead if self.drawn.random() < FAILING else verdict for verdict in verdicts]


ARMS = {
    "every verdict": None,
    "half fail": Verdict(score=None, reason="timed out"),
    "half zero": Verdict(score=0.0, reason="timed out"),
}


def main() -> None:
    """Print one JSON object: each arm's figures with their intervals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failing_verdicts", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = cast(int, parser.parse_args().seed)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(Path(folder), seed), indent=1))


def measured(folder: Path, seed: int) -> dict[str, Any]:
    """The figures of the supervised weights, and of each arm's last."""
    write_world(folder / "world", seed=0, people=2000)
    head, careless, *later = (
        RECIPE.read_text(encoding="utf-8").replace("runs/world", f"{folder}/world").split("[[stage]]")
    )
    base = f'model = "{RECIPE.parents[2] / "models" / "tiny-reader"}"'
    teaching = _written(folder / "teaching.toml", [_with_model(head, base), careless])
    taught = _run(teaching, folder / "teaching", seed)
    start = f'model = "{latest_checkpoint(taught / "checkpoints")}"'
    recipe = _written(folder / "refiner.toml", [_with_model(head, start), *later])
    figures: dict[str, Any] = {}
    for name, instead in ARMS.items():
        run = folder / name.replace(" ", "_")
        with VerdictCache(folder / f"{len(figures)}.sqlite") as cache, judged_by(instead, seed, cache):
            _run(recipe, run, seed, "stage.1.max_missing_fraction=1")
        for file in (run / "eval").glob("*.json"):  # what is measured again is measured with every verdict
            file.unlink()
        _run(recipe, run, seed, "stage.1.max_missing_fraction=1")
        figures.setdefault("taught", _figures(run, "taught"))
        figures[name] = _figures(run, "trained") | {"missing": _missing(run)}
    return figures


def judged_by(instead: Verdict | None, seed: int, cache: VerdictCache) -> AbstractContextManager[Any]:
    """Lets recipes with a lexical judge open this one meanwhile."""
    return patch("sleuth.judges.tables.LexicalJudge", partial(_judge, instead, seed, cache))


def _judge(instead: Verdict | None, seed: int, cache: VerdictCache) -> NamedJudge:
    """The judge behind the cache and retries of a paid one."""
    if instead is None:
        return LexicalJudge()
    return CachedJudge(Unreliable(instead, random.Random(seed)), cache, RETRY_LIMITS)


def _with_model(head: str, model: str) -> str:
    return head.replace('model = "models/tiny-reader"', model)


def _written(file: Path, parts: Sequence[str]) -> Path:
    file.write_text("[[stage]]".join(parts), encoding="utf-8")
    return file


def _run(recipe: Path, folder: Path, seed: int, *overrides: str) -> Path:
    resolved = load_recipe(recipe, (f"seed={seed}", *overrides))
    with RunFolder.open(folder, resolved) as place:
        run_recipe(resolved, place)
    return folder


def _figures(run: Path, name: str) -> dict[str, Any]:
    contents = json.loads((run / "eval" / f"{name}.json").read_text(encoding="utf-8"))
    return {key: contents[key] for key in FIGURES}


def _missing(run: Path) -> float:
    """The share of missing scores over all steps."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    shares = [row["missing_fraction"] for row in rows if "missing_fraction" in row]
    return round(sum(shares) / len(shares), 3)


if __name__ == "__main__":
    main()
