"""Whether a source's thoughts are worth teaching: they must make what follows them likelier than no thought does, and
than sentences that fit any text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from sleuth.evaluation.thought_arms import GENERIC
from sleuth.evaluation.thought_figures import Scorer, places_of, suffix_nlls
from sleuth.factories import ThoughtPosition
from sleuth.metrics.intervals import Measured, paired_bootstrap
from sleuth.types import Document

SUFFIX_TOKENS = 64
"""So many tokens behind a thought are looked at: its influence fades."""
LEAST = 16
"""Documents below which a source cannot be told."""
MOST = 256
"""Documents of a source that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGate:
    """How much likelier a source's thoughts make each token behind them, in nats, than an empty thought and than
    generic ones; intervals are over documents."""

    source: str
    documents: int
    over_blank: Measured
    over_generic: Measured

    @property
    def passes(self) -> bool:
        """Both gains are above 0 with their whole intervals, over enough documents to tell."""
        return self.documents >= LEAST and all((gain.low or 0) > 0 for gain in (self.over_blank, self.over_generic))

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self) | {"passes": self.passes}


def thought_gates(
    scorer: Scorer, documents: Sequence[Document], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[SourceGate]:
    """The gate of each source, in the order of their names; of a source the first `MOST` documents are looked at."""
    of_source: dict[str, list[Document]] = {}
    for document in documents:
        of_source.setdefault(document.source, []).append(document)
    looked_at = {source: of_source[source][:MOST] for source in sorted(of_source)}
    total, done, gates = sum(map(len, looked_at.values())), 0, []
    for source, chosen in looked_at.items():
        places: list[ThoughtPosition] = []
        nlls: dict[str, list[float]] = {}
        for document in chosen:
            own = places_of(scorer, document, SUFFIX_TOKENS)
            for name, values in suffix_nlls(scorer, own, _conditions(own)).items() if own else ():
                nlls.setdefault(name, []).extend(values)
            places += own
            done += 1
            progress(done, total)
        gates.append(_gate(source, places, nlls))
    return gates


def _conditions(places: Sequence[ThoughtPosition]) -> dict[str, list[str | None]]:
    generic: Mapping[str, list[str | None]] = {
        f"generic_{number}": [sentence for _ in places] for number, sentence in enumerate(GENERIC)
    }
    return {"true": [place.thought for place in places], "blank": ["" for _ in places], **generic}


def _gate(source: str, places: Sequence[ThoughtPosition], nlls: Mapping[str, Sequence[float]]) -> SourceGate:
    clusters = [place.document for place in places]
    true = nlls.get("true", [])
    generic = [fmean(values) for values in zip(*(nlls[name] for name in nlls if "generic" in name), strict=True)]
    return SourceGate(
        source=source,
        documents=len(set(clusters)),
        over_blank=paired_bootstrap(nlls.get("blank", []), true, clusters),
        over_generic=paired_bootstrap(generic, true, clusters),
    )
