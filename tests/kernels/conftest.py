from __future__ import annotations

from small_learners import make_model, make_rows

__all__ = ["make_model", "make_rows"]
