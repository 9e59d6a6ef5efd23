"""Weights as other trainers save them, made a Hugging Face folder."""

from __future__ import annotations

from sleuth.convert.merge import Merged, merge_shards

__all__ = ["Merged", "merge_shards"]
