"""What a model makes of thoughts that it is never taught: measured before a stage's first step and at its saves."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedModel

from sleuth.evaluation.thought_figures import Scorer, thought_figures
from sleuth.factories import thought_documents
from sleuth.learn.token_budget import TokenBudget
from sleuth.metrics.intervals import Measured
from sleuth.recipe import HeldOutThoughtsRecipe
from sleuth.render import Renderer
from sleuth.runs.eval_file import write_eval
from sleuth.stage_context import StageContext

TOLD = ("thought_nll", "text_nll", "suffix_nll_raw", "suffix_nll_true", "suffix_nll_corrupted", "thought_gain")
"""What is said of the figures; all are in the files."""


class HeldOutThoughts:
    """The documents of `[stage.held_out]`, and where their figures are written: `eval/STAGE_WHEN.json`."""

    def __init__(self, asked: HeldOutThoughtsRecipe, run: StageContext) -> None:
        self.asked = asked
        self.run = run
        self.documents = thought_documents(asked)

    def measure(
        self, model: PreTrainedModel, renderer: Renderer, budget: TokenBudget, when: str
    ) -> dict[str, Measured]:
        """Every figure, written down too."""
        found = budget.run(
            lambda tokens: thought_figures(
                Scorer(model=model, renderer=renderer, budget=tokens),
                self.documents,
                row_tokens=self.asked.row_tokens,
                suffix_tokens=self.asked.suffix_tokens,
            )
        )
        name = f"{self.run.stage.name}_{when}"
        contents = {"name": name, "texts": str(self.asked.texts), "documents": len(self.documents)}
        contents |= {figure: measured.as_json() for figure, measured in found.items()}
        file = self.run.folder.eval / f"{name}.json"
        self.run.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return found


def told(figures: Mapping[str, Measured]) -> str:
    """`thought_nll 1.234 (1.100 to 1.300), ...`: those that were measured."""
    measured = {name: figure for name in TOLD if (figure := figures[name]).value is not None}
    return ", ".join(f"{name} {one.formatted()}" for name, one in measured.items())
