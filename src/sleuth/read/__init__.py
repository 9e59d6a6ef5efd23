"""Reading: a model that learns from nothing to find an answer in passages and to copy it."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="read",
    about="Readers: models of random weights that learn to find an answer in a passage and to copy it.",
    initial_weights={"induction": "sleuth.read.induction:begin_with_induction"},
    dialects={"reading": "sleuth.read.dialect:READING"},
    thoughtless=("reading",),
    data={"reading": "sleuth.read.texts:ReadingRecipe"},
    verbs={"Make data": {"annotate questions": "sleuth.read.verbs:questions"}},
)
