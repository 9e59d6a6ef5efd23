"""Citing: the evidence of a search, rewritten as one answer whose claims cite it."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="cite",
    about="Refiners: the evidence of a search, rewritten as one answer whose claims cite it.",
    environments={
        "refine": "sleuth.cite.tables:RefineEnvRecipe",
    },
    skills={
        "claims": "sleuth.cite.exam:claims",
        "criteria": "sleuth.cite.exam:criteria",
        "criteria_without_evidence": "sleuth.cite.exam:UNSEEN_CRITERIA",
        "static_criteria": "sleuth.cite.exam:static_criteria",
        "static_criteria_without_evidence": "sleuth.cite.exam:UNSEEN_STATIC",
        "claims_on_sheets": "sleuth.cite.exam:claims",
        "criteria_on_sheets": "sleuth.cite.exam:CRITERIA_ON_SHEETS",
        "criteria_without_evidence_on_sheets": "sleuth.cite.exam:UNSEEN_CRITERIA_ON_SHEETS",
        "static_criteria_on_sheets": "sleuth.cite.exam:STATIC_ON_SHEETS",
        "static_criteria_without_evidence_on_sheets": "sleuth.cite.exam:UNSEEN_STATIC_ON_SHEETS",
    },
    rewards={
        "citation": "sleuth.cite.citation_reward:CitationRecipe",
        "rubric": "sleuth.cite.rubric_reward:RubricRecipe",
    },
    credits={
        "citation_gain": "sleuth.cite.tables:CitationGainRecipe",
    },
    other_dialects=("sleuth.cite.dialect:ANSWER_ONLY", "sleuth.cite.dialect:THINKING"),
    thoughtless=("refine_answer_only",),
    texts={
        "placing": "sleuth.cite.world_citing:PLACING",
        "citing": "sleuth.cite.world_citing:CITING",
        "strangers": "sleuth.cite.world_citing:STRANGERS",
        "namesakes": "sleuth.cite.world_citing:NAMESAKES",
        "refining": "sleuth.cite.world_citing:REFINING",
    },
    outcomes={"citation_f1": "sleuth.cite.figures:outcome"},
    layouts={"refiner": "sleuth.cite.rows:LAYOUT"},
    world_files="sleuth.cite.world_tool_outputs:WORLD_FILES",
    figures=("sleuth.cite.figures:FIGURES", "sleuth.cite.figures:STEPS"),
    verbs={"Make data": {"annotate rubrics": "sleuth.cite.verbs:rubrics"}},
)
