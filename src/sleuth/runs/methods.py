"""The published methods that a recipe follows: tags and citations for the cards of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.recipe import Recipe
from sleuth.recipe.recipe import StageFields


def _misc(key: str, title: str, author: str, year: int, where: str) -> str:
    return f"@misc{{{key},\n  title={{{title}}},\n  author={{{author}}},\n  year={{{year}}},\n  {where}\n}}"


def _arxiv(key: str, title: str, author: str, year: int, number: str) -> str:
    return _misc(key, title, author, year, f"eprint={{{number}}},\n  archivePrefix={{arXiv}}")


CITATIONS = {
    "grpo": _arxiv(
        "shao2024deepseekmath",
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "Shao, Zhihong and others",
        2024,
        "2402.03300",
    ),
    "search_r1": _arxiv(
        "jin2025searchr1",
        "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning",
        "Jin, Bowen and others",
        2025,
        "2503.09516",
    ),
    "slime": _misc(
        "slime2025",
        "slime: An LLM post-training framework for RL Scaling",
        "Zhu, Zilin and others",
        2025,
        "howpublished={\\url{https://github.com/THUDM/slime}}",
    ),
    "research": _arxiv(
        "chen2025research",
        "ReSearch: Learning to Reason with Search for LLMs via Reinforcement Learning",
        "Chen, Mingyang and others",
        2025,
        "2503.19470",
    ),
    "self_improving": _arxiv(
        "tan2026selfimproving",
        "Self-Improving Pretraining: using post-trained models to pretrain better models",
        "Tan, Ellen Xiaoqing and others",
        2026,
        "2601.21343",
    ),
    "distillation": _arxiv(
        "agarwal2023onpolicy",
        "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
        "Agarwal, Rishabh and others",
        2023,
        "2306.13649",
    ),
    "dgpo": _arxiv(
        "kotoge2025dgpo",
        "Can Compact Language Models Search Like Agents? Distillation-Guided Policy Optimization for Preserving "
        "Agentic RAG Capabilities",
        "Kotoge, Rikuto and others",
        2025,
        "2508.20324",
    ),
    "dr_tulu": _arxiv(
        "shao2025drtulu",
        "DR Tulu: Reinforcement Learning with Evolving Rubrics for Deep Research",
        "Shao, Rulin and others",
        2025,
        "2511.19399",
    ),
}
"""BibTeX of each method. `self_improving` has both self-improving pretraining and thinking mid-training (RLMT)."""

TAGS = {
    "grpo": ("reinforcement-learning",),
    "online_dpo": ("dpo",),
    "supervised": ("sft",),
    "warm_start": ("sft",),
    "search": ("search-agent", "retrieval-augmented-generation"),
    "refine": ("citations",),
    "thought": ("thinking",),
    "tools": ("tool-use",),
}
"""Tags of the hub by the kind of a stage or of its environment."""


def method_tags(stages: Sequence[StageFields]) -> list[str]:
    """The tags of what these stages train."""
    kinds = [kind for stage in stages for kind in (stage.kind, getattr(getattr(stage, "env", None), "kind", ""))]
    return list(dict.fromkeys(tag for kind in kinds for tag in TAGS.get(kind, ())))


def method_citations(stages: Sequence[StageFields]) -> list[str]:
    """BibTeX of the methods that these stages follow."""
    return [CITATIONS[name] for name in dict.fromkeys(name for stage in stages for name in stage.methods())]


def trained_stages(recipe: Recipe, stage: int) -> list[StageFields]:
    """The stages that trained a checkpoint of the recipe's stage number `stage`."""
    return [one for one in recipe.stage[: stage + 1] if one.trains]
