"""How well a model writes thoughts that it was shown, and what a thought does for the text behind it.

Whether a thought helps is asked with the same tokens on both sides of its place, under four conditions: nothing there
(raw), an empty thought (blank), the document's own (true), and that of another document of the same kind (corrupted).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedModel

from sleuth.factories import ThoughtPosition, context_of, interleaved, places_in, thought_tokens
from sleuth.learn.batch import Row
from sleuth.learn.logprobs import row_logprobs
from sleuth.metrics.intervals import Measured, bootstrap_mean, paired_bootstrap
from sleuth.render import Renderer
from sleuth.types import Document

RAW = None
"""No thought, and no tags either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Tells how likely a model holds given text; `budget` distinct tokens are computed at once."""

    model: PreTrainedModel
    renderer: Renderer
    budget: int


def thought_figures(
    scorer: Scorer, documents: Sequence[Document], *, row_tokens: int, suffix_tokens: int
) -> dict[str, Measured]:
    """Every figure with its interval over documents, in nats.

    `thought_nll` and `text_nll` are means over the tokens of a row inside the tags (tags included) and outside them,
    then over rows; `thought_nats` is the sum over a whole thought. `suffix_nll_*` are means over the tokens behind each
    thought under each condition, `thought_gain` is blank less true. Where documents have several kinds, `thought_nats`
    and `suffix_nll_*` are told of each kind too.
    """
    written = _written(scorer, documents, row_tokens)
    places = [place for document in documents for place in places_of(scorer, document, suffix_tokens)]
    suffixes, clusters = suffix_nlls(scorer, places, conditions_of(places)), [place.document for place in places]
    kinds = sorted({document.kind for document in documents})
    figures = {name: bootstrap_mean(list(values.values())) for name, values in written.items()}
    figures |= {f"suffix_nll_{name}": bootstrap_mean(values, clusters) for name, values in suffixes.items()}
    figures["thought_gain"] = paired_bootstrap(suffixes["blank"], suffixes["true"], clusters)
    for kind in kinds if len(kinds) > 1 else ():
        own = [written["thought_nats"].get(document.id) for document in documents if document.kind == kind]
        figures[f"thought_nats_{kind}"] = bootstrap_mean(own)
        for name, values in suffixes.items():
            of_kind = [value if place.kind == kind else None for place, value in zip(places, values, strict=True)]
            figures[f"suffix_nll_{name}_{kind}"] = bootstrap_mean(of_kind, clusters)
    return figures


def conditions_of(places: Sequence[ThoughtPosition]) -> dict[str, list[str | None]]:
    """What stands at each place, by condition. A corrupted thought is the next one of another document of its kind;
    where there is none, of another document."""
    return {
        "raw": [RAW for _ in places],
        "blank": ["" for _ in places],
        "true": [place.thought for place in places],
        "corrupted": [_another(places, at) for at in range(len(places))],
    }


def suffix_nlls(
    scorer: Scorer, places: Sequence[ThoughtPosition], conditions: Mapping[str, Sequence[str | None]]
) -> dict[str, list[float]]:
    """By condition and place, the mean negative log-probability of a token behind it. What conditions share before the
    thought is computed once."""
    rows = [
        _row(place, thoughts[at], scorer.renderer)
        for at, place in enumerate(places)
        for thoughts in conditions.values()
    ]
    values = iter(row_logprobs(scorer.model, rows, budget=scorer.budget))
    found: dict[str, list[float]] = {name: [] for name in conditions}
    for place in places:
        for name in conditions:
            found[name].append(-fmean(next(values)[-len(place.behind) :]))
    return found


def _written(scorer: Scorer, documents: Sequence[Document], row_tokens: int) -> dict[str, dict[str, float]]:
    """By figure and document, what the rows as they are taught cost."""
    found: dict[str, dict[str, float]] = {"thought_nll": {}, "thought_nats": {}, "text_nll": {}}
    taught = [scorer.renderer.render_all(interleaved(document, scorer.renderer, row_tokens)) for document in documents]
    rows = [
        Row(
            tokens=tuple(token for segment in segments for token in segment.tokens),
            trained=tuple(True for segment in segments for _ in segment.tokens),
        )
        for segments in taught
    ]
    logprobs = row_logprobs(scorer.model, rows, budget=scorer.budget)
    for document, segments, values in zip(documents, taught, logprobs, strict=True):
        at, thoughts, text = 0, [], []
        for segment in segments:
            of_segment = [-value for value in values[at : at + len(segment.tokens)]]
            at += len(segment.tokens)
            if segment.author == "teacher":
                thoughts.append(of_segment)
            else:
                text += of_segment
        if thoughts:
            found["thought_nll"][document.id] = fmean(value for thought in thoughts for value in thought)
            found["thought_nats"][document.id] = fmean(sum(thought) for thought in thoughts)
        if len(text) > 1:
            found["text_nll"][document.id] = fmean(text[1:])  # nothing predicts the first token
    return found


def places_of(scorer: Scorer, document: Document, suffix_tokens: int) -> list[ThoughtPosition]:
    """The places of a document as far as the model can read it."""
    context = context_of(scorer.model)
    return list(places_in(document, scorer.renderer, suffix_tokens=suffix_tokens, context=context))


def _another(places: Sequence[ThoughtPosition], at: int) -> str | None:
    own = places[at]
    others = [*places[at + 1 :], *places[:at]]
    foreign = [place for place in others if place.document != own.document and place.thought != own.thought]
    return next((place.thought for place in (*_alike(own, foreign), *foreign)), "")


def _alike(own: ThoughtPosition, others: Iterable[ThoughtPosition]) -> list[ThoughtPosition]:
    return [place for place in others if place.kind == own.kind]


def _row(place: ThoughtPosition, thought: str | None, renderer: Renderer) -> Row:
    """The place with a thought in it, of which the tokens behind are read."""
    between = () if thought is None else thought_tokens(thought, renderer)
    read = (False,) * (len(place.before) + len(between)) + (True,) * len(place.behind)
    return Row(tokens=(*place.before, *between, *place.behind), trained=read)
