"""Documents with thoughts as rows to train (`data.kind = "thoughts"`) and as texts to measure (`[stage.held_out]`), and
how likely a model finds the thoughts, and the text after them with and without the thoughts; sources are gated by that:
those whose thoughts do not help are not worth training on.

The tokens after a thought are scored under conditions: without thought or tags (raw), after an empty thought (blank),
the document's own (true), that of another document of the same kind (corrupted), or sentences that fit any text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.data.excerpts import plain_tokens
from sleuth.evaluation.counterfactual import suffix_row
from sleuth.evaluation.intervals import Measured, bootstrap_mean, paired_bootstrap
from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs
from sleuth.learn.models import context_of
from sleuth.learn.policy import TokenBudget
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe import SupervisedRecipe
from sleuth.render import Renderer, check_writable
from sleuth.runs.eval_file import write_eval
from sleuth.think.splicing import TAGS
from sleuth.think.tables import HeldOutThoughtsRecipe, ThoughtTextRecipe
from sleuth.think.thought_arms import GENERIC
from sleuth.think.thoughts import interleaved, require_apart, thought_documents, thought_tokens
from sleuth.training.loop import InfiniteSampler
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
        self.documents = recipe.documents()

    @staticmethod
    def require(
        stage: SupervisedRecipe, trained: TrainedTexts, tokenizer: PreTrainedTokenizerFast | None
    ) -> dict[str, int]:
        """The tokens of a row by their key. Raises SleuthError if a document is trained too, or the tokenizer cannot
        write the tags."""
        recipe = stage.held_out
        assert isinstance(recipe, HeldOutThoughtsRecipe)
        ids = trained.ids if getattr(stage.data, "texts", None) == recipe.texts else ()
        require_apart(trained.texts, recipe.documents(), ids)
        if tokenizer is not None:
            check_writable(tokenizer, TAGS)
        return {"held_out.row_tokens": recipe.row_tokens}

    def measure(
        self, model: PreTrainedModel, renderer: Renderer, budget: TokenBudget, when: str
    ) -> dict[str, Measured]:
        """Every figure; writes the file."""
        found = held_out_figures(self.recipe, self.documents, model, renderer, budget, self.context.ranks)
        name = f"{self.context.stage.name}_{when}"
        contents = {"name": name, "texts": str(self.recipe.texts), "documents": len(self.documents)}
        contents |= {figure: measured.as_json() for figure, measured in found.items()}
        file = self.context.folder.eval / f"{name}.json"
        self.context.folder.backlog.write(f"the evaluation {name}", lambda: write_eval(file, contents))
        return found

    def shown(self, figures: Mapping[str, Measured]) -> dict[str, Measured]:
        """Those of `SHOWN`; the file has all."""
        return {name: figures[name] for name in SHOWN}


def held_out_figures(
    recipe: HeldOutThoughtsRecipe,
    documents: Sequence[Document],
    model: PreTrainedModel,
    renderer: Renderer,
    budget: TokenBudget,
    ranks: Ranks,
) -> dict[str, Measured]:
    """The figures of the held-out thoughts of these documents."""

    def within(tokens: int) -> dict[str, Measured]:
        scorer = LogprobScorer(model=model, renderer=renderer, budget=tokens, ranks=ranks)
        return thought_figures(scorer, documents, row_tokens=recipe.row_tokens, suffix_tokens=HELD_OUT_SUFFIX)

    return budget.run(within)


Conditions = Mapping[str, Sequence[str | None]]
"""By condition, the thought at each position; None: neither thought nor tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobScorer:
    """A model that scores given text, in passes over at most `budget` distinct tokens; on several `ranks` each scores a
    share of it."""

    model: PreTrainedModel
    renderer: Renderer
    budget: int
    ranks: Ranks = ALONE

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """As `row_logprobs`."""
        return self.ranks.dealt(rows, lambda mine, _: row_logprobs(self.model, mine, budget=self.budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtPosition:
    """The position of a thought in a document: the tokens `before` and `behind` it, without any other thought.

    `ThoughtPosition(document="d4", kind="", before=(5, 9), thought=" so it rains", behind=(7,))`.
    """

    document: str
    kind: str
    before: tuple[int, ...]
    thought: str
    behind: tuple[int, ...]


def positions_in(document: Document, renderer: Renderer, suffix_tokens: int, context: int) -> Iterator[ThoughtPosition]:
    """Every thought of the document with text on both sides, in order; before it as many tokens as fit into a model's
    context."""
    for thought in document.thoughts:
        behind = plain_tokens(renderer, document.text[thought.at :])[:suffix_tokens]
        room = context - len(behind) - len(thought_tokens(thought.text, renderer))
        before = plain_tokens(renderer, document.text[: thought.at])[-max(room, 1) :]
        if before and behind and room > 0:
            yield ThoughtPosition(
                document=document.id,
                kind=document.kind,
                before=tuple(before),
                thought=thought.text,
                behind=tuple(behind),
            )


def positions_of(scorer: LogprobScorer, document: Document, suffix_tokens: int) -> list[ThoughtPosition]:
    """The thought positions of a document within the context of the model."""
    return list(positions_in(document, scorer.renderer, suffix_tokens, context_of(scorer.model)))


def thought_figures(
    scorer: LogprobScorer, documents: Sequence[Document], *, row_tokens: int, suffix_tokens: int
) -> dict[str, Measured]:
    """Every figure with its interval over documents, in nats.

    `thought_nll` and `text_nll` are means over the tokens of a row inside the tags (tags included) and outside them,
    then over rows; `thought_nats` is the sum over a whole thought. `suffix_nll_*` are means over the tokens after each
    thought under each condition, `thought_gain` is blank minus true.
    """
    row_nlls = _row_nlls(scorer, documents, row_tokens)
    positions = [position for document in documents for position in positions_of(scorer, document, suffix_tokens)]
    suffixes = suffix_nlls(scorer, positions, conditions_of(positions))
    clusters = [position.document for position in positions]
    figures = {name: bootstrap_mean(list(values.values())) for name, values in row_nlls.items()}
    figures |= {f"suffix_nll_{name}": bootstrap_mean(values, clusters) for name, values in suffixes.items()}
    figures["thought_gain"] = paired_bootstrap(suffixes["blank"], suffixes["true"], clusters)
    return figures


def conditions_of(positions: Sequence[ThoughtPosition]) -> dict[str, list[str | None]]:
    """The conditions of held-out thoughts. A corrupted one is the next thought of another document of the same kind, or
    of any other document if the kind has no other."""
    return {
        "raw": [None] * len(positions),
        "blank": [""] * len(positions),
        "true": [position.thought for position in positions],
        "corrupted": [_another_thought(positions, at) for at in range(len(positions))],
    }


def _another_thought(positions: Sequence[ThoughtPosition], at: int) -> str | None:
    own = positions[at]
    rest = [*positions[at + 1 :], *positions[:at]]
    foreign = [one for one in rest if one.document != own.document and one.thought != own.thought]
    alike = [one for one in foreign if one.kind == own.kind]
    return next((one.thought for one in (*alike, *foreign)), "")


def suffix_nlls(
    scorer: LogprobScorer, positions: Sequence[ThoughtPosition], conditions: Conditions
) -> dict[str, list[float]]:
    """By condition and position, the mean negative log-probability of a token after the thought. The shared prefix of
    the conditions is computed once."""
    rows = []
    for at, position in enumerate(positions):
        for thoughts in conditions.values():
            thought = thoughts[at]
            between = () if thought is None else thought_tokens(thought, scorer.renderer)
            rows.append(suffix_row((*position.before, *between), position.behind))
    logprobs = iter(scorer.logprobs(rows))
    nlls: dict[str, list[float]] = {name: [] for name in conditions}
    for position in positions:
        for name in conditions:
            nlls[name].append(-fmean(next(logprobs)[-len(position.behind) :]))
    return nlls


def _row_nlls(scorer: LogprobScorer, documents: Sequence[Document], row_tokens: int) -> dict[str, dict[str, float]]:
    """By figure and document, the negative log-probabilities of the rows as training lays them out."""
    nlls: dict[str, dict[str, float]] = {"thought_nll": {}, "thought_nats": {}, "text_nll": {}}
    rendered = [
        scorer.renderer.render_all(interleaved(document, scorer.renderer, row_tokens)) for document in documents
    ]
    rows = [suffix_row((), [token for segment in segments for token in segment.tokens]) for segments in rendered]
    logprobs = scorer.logprobs(rows)
    for document, segments, values in zip(documents, rendered, logprobs, strict=True):
        at, thoughts, text = 0, [], []
        for segment in segments:
            segment_nlls = [-value for value in values[at : at + len(segment.tokens)]]
            at += len(segment.tokens)
            if segment.author == "teacher":
                thoughts.append(segment_nlls)
            else:
                text += segment_nlls
        if thoughts:
            nlls["thought_nll"][document.id] = fmean(value for thought in thoughts for value in thought)
            nlls["thought_nats"][document.id] = fmean(sum(thought) for thought in thoughts)
        if len(text) > 1:
            nlls["text_nll"][document.id] = fmean(text[1:])  # nothing predicts the first token
    return nlls


# -- the gate of a source ----------------------------------------------------------------------------------------------

SUFFIX_TOKENS = 64
"""Tokens behind a thought that are scored; its influence fades."""
MIN_DOCUMENTS, MAX_DOCUMENTS = 16, 256
"""Documents that a source needs to pass, and those of it that are scored at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGate:
    """The gain of a source's thoughts over an empty thought and over generic ones, in nats a following token; intervals
    are over documents."""

    source: str
    documents: int
    over_blank: Measured
    over_generic: Measured

    @property
    def passes(self) -> bool:
        """Whether both intervals are above 0, over at least MIN_DOCUMENTS documents."""
        return self.documents >= MIN_DOCUMENTS and self.over_blank.side == self.over_generic.side == 1

    @property
    def named(self) -> str:
        """The source in words."""
        return self.source or "(no source)"

    def described(self, number: str) -> tuple[str, str, str]:
        """Both gains with their intervals, and the verdict, in words."""
        blank, generic = (
            gain.formatted(number, unmeasured="unmeasured") for gain in (self.over_blank, self.over_generic)
        )
        return blank, generic, "passes" if self.passes else "does not pass"

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self) | {"passes": self.passes}


def thought_gates(
    scorer: LogprobScorer, documents: Sequence[Document], progress: Callable[[int, int], None]
) -> list[SourceGate]:
    """The gate of each source, by name, from its first MAX_DOCUMENTS documents."""
    of_source: dict[str, list[Document]] = {}
    for document in documents:
        of_source.setdefault(document.source, []).append(document)
    scored = {source: of_source[source][:MAX_DOCUMENTS] for source in sorted(of_source)}
    total, done, gates = sum(map(len, scored.values())), 0, []
    budget = TokenBudget(scorer.budget)
    for source, chosen in scored.items():
        clusters: list[str] = []
        nlls: dict[str, list[float]] = {"true": [], "blank": [], "generic": []}
        for document in chosen:
            positions = positions_of(scorer, document, SUFFIX_TOKENS)
            clusters += [document.id for _ in positions]
            for name, values in (_gate_nlls(scorer, positions, budget) if positions else {}).items():
                nlls[name] += values
            done += 1
            progress(done, total)
        gates.append(
            SourceGate(
                source=source,
                documents=len(set(clusters)),
                over_blank=paired_bootstrap(nlls["blank"], nlls["true"], clusters),
                over_generic=paired_bootstrap(nlls["generic"], nlls["true"], clusters),
            )
        )
    return gates


def _gate_nlls(
    scorer: LogprobScorer, positions: Sequence[ThoughtPosition], budget: TokenBudget
) -> dict[str, list[float]]:
    """As `suffix_nlls`, after the true thoughts, empty ones, and as a mean after generic ones."""
    conditions = {"true": [position.thought for position in positions], "blank": [""] * len(positions)}
    conditions |= {f"generic_{number}": [sentence] * len(positions) for number, sentence in enumerate(GENERIC)}
    nlls = budget.run(lambda tokens: suffix_nlls(replace(scorer, budget=tokens), positions, conditions))
    true, blank, *generic = nlls.values()
    return {"true": true, "blank": blank, "generic": [fmean(values) for values in zip(*generic, strict=True)]}
