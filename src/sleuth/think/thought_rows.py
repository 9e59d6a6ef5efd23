"""Documents with thoughts as rows to train (`data.kind = "thoughts"`), and as texts to measure (`[stage.held_out]`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.evaluation.intervals import Measured
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe import SupervisedRecipe
from sleuth.render import Renderer, check_writable
from sleuth.runs.eval_file import write_eval
from sleuth.think.splicing import TAGS
from sleuth.think.tables import HeldOutThoughtsRecipe, ThoughtTextRecipe
from sleuth.think.thought_figures import LogprobScorer, thought_figures
from sleuth.think.thoughts import interleaved, require_apart, thought_documents
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.sft import TrainedTexts
from sleuth.training.stage_context import StageContext
from sleuth.types import Document, Piece

HELD_OUT_SUFFIX = 128
"""Tokens behind a held-out thought on which its gain is measured, at most."""
SHOWN = ("thought_nll", "text_nll", "suffix_nll_raw", "suffix_nll_true", "suffix_nll_corrupted", "thought_gain")
"""The figures of held-out thoughts that are printed and logged; the evaluation files have all."""


def training_rows(
    stage: SupervisedRecipe, context: StageContext, tokenizer: PreTrainedTokenizerFast, positions: int
) -> tuple[ThoughtRows, None]:
    """The rows of a stage, which have no prompts."""
    data = stage.data
    assert isinstance(data, ThoughtTextRecipe)
    return ThoughtRows(thought_documents(data), Renderer(tokenizer), data.row_tokens, data.empty, context.key), None


def require_texts(stage: SupervisedRecipe, tokenizer: PreTrainedTokenizerFast | None) -> TrainedTexts:
    """The texts of a stage. Raises SleuthError if there is none, or the tokenizer cannot write the tags."""
    data = stage.data
    assert isinstance(data, ThoughtTextRecipe)
    texts = [document.text for document in thought_documents(data)]
    if tokenizer is not None:
        check_writable(tokenizer, TAGS)
    return TrainedTexts(texts=texts, longest={"data.row_tokens": data.row_tokens})


class ThoughtRows:
    """Documents with the thoughts of a teacher in place, at most `most` tokens of each, shuffled in each epoch. In a
    share of the rows, `empty`, the thoughts are empty and not trained."""

    def __init__(
        self, documents: Sequence[Document], renderer: Renderer, most: int, empty: float, key: tuple[int, ...]
    ) -> None:
        self.order = InfiniteSampler(documents, seed=key)
        self.renderer = renderer
        self.most = most
        self.empty = empty
        self.key = key

    def row(self, index: int) -> list[Piece]:
        """The text with its thoughts between their tags."""
        document = self.order.at(index)
        if random.Random(f"empty {self.key} {index}").random() >= self.empty:
            return interleaved(document, self.renderer, self.most)
        silent = replace(document, thoughts=tuple(replace(thought, text="") for thought in document.thoughts))
        return [
            replace(piece, author="env") if piece.author == "teacher" else piece
            for piece in interleaved(silent, self.renderer, self.most)
        ]


class HeldOutThoughts:
    """Documents with thoughts that are never trained, `[stage.held_out]`. They are measured before the first step and
    at checkpoints; the figures are written to `eval/STAGE_WHEN.json`."""

    def __init__(self, recipe: HeldOutThoughtsRecipe, context: StageContext) -> None:
        self.recipe = recipe
        self.context = context
        self.documents = thought_documents(recipe)

    @staticmethod
    def require(
        stage: SupervisedRecipe, trained: TrainedTexts, tokenizer: PreTrainedTokenizerFast | None
    ) -> dict[str, int]:
        """The tokens of a row by their key. Raises SleuthError if a document is trained too, or the tokenizer cannot
        write the tags."""
        recipe = stage.held_out
        assert isinstance(recipe, HeldOutThoughtsRecipe)
        ids = trained.ids if getattr(stage.data, "texts", None) == recipe.texts else ()
        require_apart(trained.texts, thought_documents(recipe), ids)
        if tokenizer is not None:
            check_writable(tokenizer, TAGS)
        return {"held_out.row_tokens": recipe.row_tokens}

    def measure(
        self, model: PreTrainedModel, renderer: Renderer, budget: TokenBudget, when: str
    ) -> dict[str, Measured]:
        """Every figure; writes the file."""
        found = budget.run(
            lambda tokens: thought_figures(
                LogprobScorer(model=model, renderer=renderer, budget=tokens),
                self.documents,
                row_tokens=self.recipe.row_tokens,
                suffix_tokens=HELD_OUT_SUFFIX,
            )
        )
        name = f"{self.context.stage.name}_{when}"
        contents = {"name": name, "texts": str(self.recipe.texts), "documents": len(self.documents)}
        contents |= {figure: measured.as_json() for figure, measured in found.items()}
        file = self.context.folder.eval / f"{name}.json"
        self.context.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return found

    def shown(self, figures: Mapping[str, Measured]) -> dict[str, Measured]:
        """Those of `SHOWN`; the file has all."""
        return {name: figures[name] for name in SHOWN}
