"""Thoughts are taught where they help for certain, and over enough documents to tell."""

from __future__ import annotations

import pytest

from sleuth.evaluation.intervals import Measured
from sleuth.think.thought_figures import SourceGate

LEAST = 16
"""Documents."""


def gate(blank: tuple[float, float], generic: tuple[float, float], documents: int = LEAST) -> SourceGate:
    gains = [Measured(value=sum(ends) / 2, low=ends[0], high=ends[1], n=documents) for ends in (blank, generic)]
    return SourceGate(source="s", documents=documents, over_blank=gains[0], over_generic=gains[1])


def test_both_gains_must_be_above_zero_with_their_whole_intervals() -> None:
    assert gate((0.1, 0.3), (0.01, 0.2)).passes
    assert not gate((0.1, 0.3), (0.0, 0.2)).passes
    assert not gate((-0.1, 0.3), (0.1, 0.2)).passes


@pytest.mark.parametrize(("documents", "passes"), [(0, False), (LEAST - 1, False), (LEAST, True)])
def test_too_few_documents_cannot_tell(documents: int, passes: bool) -> None:
    assert gate((0.1, 0.3), (0.1, 0.3), documents).passes is passes


def test_the_record_says_whether_the_source_passes() -> None:
    found = gate((0.1, 0.3), (0.1, 0.3)).as_json()
    assert (found["source"], found["passes"], found["over_blank"]["low"]) == ("s", True, 0.1)
