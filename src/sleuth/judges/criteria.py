"""How a judge that knows of nothing but support judges by a criterion."""

from __future__ import annotations

import re

from sleuth.types import Case

TAG = re.compile(r"</?\w[^<>]*>")


def as_support(case: Case) -> Case:
    """A criterion read as a statement: it is fulfilled as far as the answer, without its tags, states it. Only of use
    for criteria that are statements, such as "Ada Voss was born in Tarn."; a case without one stays as it is."""
    if not case.criterion:
        return case
    return Case(claim=case.criterion, evidence=TAG.sub(" ", case.claim))
