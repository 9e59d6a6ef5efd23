"""Converts checkpoints of other trainers into Hugging Face folders."""

from __future__ import annotations

from sleuth.convert.merge import Merged, merge_shards

__all__ = ["Merged", "merge_shards"]
