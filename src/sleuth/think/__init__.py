"""Thinking: a thought in the middle of a text, paid by what it helps to continue."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="think",
    about="Thoughts in texts, paid by what they help to continue, and preferences between continuations.",
    stages={
        "annotate": "sleuth.think.tables:AnnotateRecipe",
        "online_dpo": "sleuth.think.preference_tables:OnlineDpoRecipe",
        "win_rate": "sleuth.think.preference_tables:WinRateRecipe",
        "probe": "sleuth.think.tables:ProbeRecipe",
        "gate": "sleuth.think.tables:GateRecipe",
        "reason": "sleuth.think.tables:ReasonRecipe",
    },
    environments={
        "thought": "sleuth.think.tables:ThoughtEnvRecipe",
    },
    rewards={
        "suffix": "sleuth.think.tables:SuffixRecipe",
        "gain": "sleuth.think.tables:GainRecipe",
    },
    preferences={
        "pairwise": "sleuth.think.preference_tables:PairwiseRecipe",
        "python": "sleuth.think.preference_tables:FunctionPreferenceRecipe",
    },
    skills={
        "continuations": "sleuth.think.exam:continuations",
        "suffixes": "sleuth.think.exam:suffixes",
    },
    judges={
        "ending": "sleuth.think.tables:EndingJudgeRecipe",
    },
    layouts={"augmented": "sleuth.think.splicing:LAYOUT"},
    world_files="sleuth.think.world_texts:WORLD_FILES",
    data={
        "thoughts": "sleuth.think.tables:ThoughtTextRecipe",
        "places": "sleuth.think.tables:PlacesRecipe",
    },
    held_out={
        "": "sleuth.think.tables:HeldOutThoughtsRecipe",
    },
    figures=("sleuth.think.figures:FIGURES", "sleuth.think.figures:STEPS"),
    verbs={
        "Evaluate": {
            "win-rate": "sleuth.think.verbs:win_rate",
            "probe-thoughts": "sleuth.think.verbs:probe_thoughts",
        },
    },
)
