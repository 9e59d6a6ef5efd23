"""Measures how likely a model finds the thoughts of documents, and the text after them with and without the thoughts.

The tokens after a thought are scored under four conditions: without thought or tags (raw), after an empty thought
(blank), the document's own (true), and that of another document of the same kind (corrupted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.evaluation.counterfactual import suffix_row
from sleuth.evaluation.intervals import Measured, bootstrap_mean, paired_bootstrap
from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs
from sleuth.learn.models import context_of
from sleuth.render import Renderer
from sleuth.think.thoughts import ThoughtPosition, interleaved, places_in, thought_tokens
from sleuth.types import Document

RAW = None
"""Neither thought nor tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobScorer:
    """A model that scores given text, in passes over at most `budget` distinct tokens."""

    model: PreTrainedModel
    renderer: Renderer
    budget: int


def thought_figures(
    scorer: LogprobScorer, documents: Sequence[Document], *, row_tokens: int, suffix_tokens: int
) -> dict[str, Measured]:
    """Every figure with its interval over documents, in nats.

    `thought_nll` and `text_nll` are means over the tokens of a row inside the tags (tags included) and outside them,
    then over rows; `thought_nats` is the sum over a whole thought. `suffix_nll_*` are means over the tokens after each
    thought under each condition, `thought_gain` is blank minus true. If documents have several kinds, there are
    `thought_nats_KIND` and `suffix_nll_*_KIND` too.
    """
    row_nlls = _row_nlls(scorer, documents, row_tokens)
    positions = [position for document in documents for position in positions_of(scorer, document, suffix_tokens)]
    suffixes = suffix_nlls(scorer, positions, conditions_of(positions))
    clusters = [position.document for position in positions]
    kinds = sorted({document.kind for document in documents})
    figures = {name: bootstrap_mean(list(values.values())) for name, values in row_nlls.items()}
    figures |= {f"suffix_nll_{name}": bootstrap_mean(values, clusters) for name, values in suffixes.items()}
    figures["thought_gain"] = paired_bootstrap(suffixes["blank"], suffixes["true"], clusters)
    for kind in kinds if len(kinds) > 1 else ():
        own = [row_nlls["thought_nats"].get(document.id) for document in documents if document.kind == kind]
        figures[f"thought_nats_{kind}"] = bootstrap_mean(own)
        for name, values in suffixes.items():
            of_kind = [
                value if position.kind == kind else None for position, value in zip(positions, values, strict=True)
            ]
            figures[f"suffix_nll_{name}_{kind}"] = bootstrap_mean(of_kind, clusters)
    return figures


def conditions_of(positions: Sequence[ThoughtPosition]) -> dict[str, list[str | None]]:
    """By condition, the thought at each position. A corrupted one is the next thought of another document of the same
    kind, or of any other document if the kind has no other."""
    return {
        "raw": [RAW for _ in positions],
        "blank": ["" for _ in positions],
        "true": [position.thought for position in positions],
        "corrupted": [_another_thought(positions, at) for at in range(len(positions))],
    }


def suffix_nlls(
    scorer: LogprobScorer, positions: Sequence[ThoughtPosition], conditions: Mapping[str, Sequence[str | None]]
) -> dict[str, list[float]]:
    """By condition and position, the mean negative log-probability of a token after the thought. The shared prefix of
    the conditions is computed once."""
    rows = [
        _row(position, thoughts[at], scorer.renderer)
        for at, position in enumerate(positions)
        for thoughts in conditions.values()
    ]
    logprobs = iter(row_logprobs(scorer.model, rows, budget=scorer.budget))
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
    rows = [
        Row(
            tokens=tuple(token for segment in segments for token in segment.tokens),
            trained=tuple(True for segment in segments for _ in segment.tokens),
        )
        for segments in rendered
    ]
    logprobs = row_logprobs(scorer.model, rows, budget=scorer.budget)
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


def positions_of(scorer: LogprobScorer, document: Document, suffix_tokens: int) -> list[ThoughtPosition]:
    """The thought positions of a document within the context of the model."""
    context = context_of(scorer.model)
    return list(places_in(document, scorer.renderer, suffix_tokens=suffix_tokens, context=context))


def _another_thought(positions: Sequence[ThoughtPosition], at: int) -> str | None:
    own = positions[at]
    rest = [*positions[at + 1 :], *positions[:at]]
    foreign = [one for one in rest if one.document != own.document and one.thought != own.thought]
    alike = [one for one in foreign if one.kind == own.kind]
    return next((one.thought for one in (*alike, *foreign)), "")


def _row(position: ThoughtPosition, thought: str | None, renderer: Renderer) -> Row:
    """A row with `thought` at the position, of which the tokens after it are scored."""
    between = () if thought is None else thought_tokens(thought, renderer)
    return suffix_row((*position.before, *between), position.behind)
