"""Thinking: a thought in the middle of a text, paid by what it helps to continue."""

from __future__ import annotations

from sleuth.family import Family

FAMILY = Family(
    name="think",
    about="Thoughts in texts, paid by what they help to continue, and preferences between continuations.",
    stages={
        "annotate": "sleuth.think.annotate_table:AnnotateRecipe",
        "online_dpo": "sleuth.think.preference_tables:OnlineDpoRecipe",
        "win_rate": "sleuth.think.preference_tables:WinRateRecipe",
        "probe": "sleuth.recipe.evaluation:ProbeRecipe",
        "gate": "sleuth.recipe.evaluation:GateRecipe",
        "reason": "sleuth.recipe.evaluation:ReasonRecipe",
    },
    environments={
        "thought": "sleuth.recipe.envs:ThoughtEnvRecipe",
    },
    rewards={
        "suffix": "sleuth.think.rewards:SuffixRecipe",
        "gain": "sleuth.think.rewards:GainRecipe",
    },
    preferences={
        "pairwise": "sleuth.think.preferences:PairwiseRecipe",
        "pointwise": "sleuth.think.preferences:PointwiseRecipe",
        "mechanics": "sleuth.think.preferences:MechanicsRecipe",
        "python": "sleuth.think.preferences:FunctionPreferenceRecipe",
    },
    judges={
        "ending": "sleuth.think.judges:EndingJudgeRecipe",
    },
    data={
        "thoughts": "sleuth.recipe.text:ThoughtTextRecipe",
        "places": "sleuth.recipe.text:PlacesRecipe",
    },
)
