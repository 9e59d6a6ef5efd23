from __future__ import annotations

from small_runs import model, protocol, recipes, tokenizer

__all__ = ["model", "protocol", "recipes", "tokenizer"]
