"""`kind = "annotate"`: makes the file of a teacher's thoughts that later stages read, unless it is there."""

from __future__ import annotations

from pathlib import Path

from sleuth.judges.factory import open_client
from sleuth.recipe.text import text_recipe
from sleuth.render import Renderer
from sleuth.runs.progress import progress_bar
from sleuth.think.annotate import annotate_thoughts
from sleuth.think.annotate_table import AnnotateRecipe
from sleuth.think.thought_figures import LogprobScorer
from sleuth.think.thought_writer import ThoughtWriter
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import SleuthError, Task

SCORED_TOKENS = 8_192
"""Tokens of a forward pass of the gate on a teacher's thoughts."""


def require_inputs(stage: AnnotateRecipe, inputs: StageInputs) -> list[Task]:
    """No questions. The teacher is asked for when the stage begins: it need not be there before."""
    return []


def run(stage: AnnotateRecipe, context: StageContext) -> Path:
    """Write the rows to `stage.out`, unless it exists; returns the model unchanged. Raises SleuthError with the reason
    if the teacher is not there or fails too often: its answers so far are kept, and the same command goes on."""
    say = context.folder.say
    if stage.out.is_file():
        say(f"stage {stage.name}: {stage.out} is there, so no teacher is asked")
        return Path(context.model)
    try:
        writer = ThoughtWriter(open_client(stage.teacher, stage.out))
    except SleuthError as error:
        raise SleuthError(
            f"stage {stage.name}: the teacher that writes {stage.out} is not there: {error}; what was done so far is "
            "kept, and the same command goes on when it is"
        ) from None
    model, tokenizer = context.load(context.model)
    scorer = LogprobScorer(model=model, renderer=Renderer(tokenizer), budget=SCORED_TOKENS)
    texts = text_recipe(stage.texts, tokens=stage.tokens, part=stage.part, limit=stage.limit)
    try:
        with context.folder.costing(stage.name, "asking"):
            found = annotate_thoughts(
                texts,
                stage.out,
                writer,
                scorer,
                gated=stage.gated,
                watch=progress_bar,
                max_missing_fraction=stage.max_missing_fraction,
            )
    except SleuthError as error:  # worded for `sleuth annotate thoughts`
        lines = [line.replace("--no-gate", "gated = false").replace("with --out", "in `out`") for line in error.args]
        raise type(error)(*(f"stage {stage.name}: {line}" for line in lines)) from None
    without = f", {found.reasons.total():,} texts without thoughts" if found.reasons else ""
    say(f"stage {stage.name}: {stage.out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{without}")
    return Path(context.model)
