"""Sentence encoders: text to unit vectors by any model of sentence-transformers (extra `dense`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from sleuth.model_path import require_model
from sleuth.retrieval.index_card import EncoderCard
from sleuth.threads import PROCESS
from sleuth.types import Passage, SleuthError

HOW_TO_INSTALL = "a dense index needs the packages of an extra: pip install 'sleuth[dense]'"
PREFIXES = {"e5": ("query: ", "passage: ")}
"""Query and passage prefixes of model families, by a part of the model's name. E5: arXiv:2212.03533."""
PASSAGE_BATCH = 32


def encoder_card(
    model: str,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    pooling: str | None = None,
) -> EncoderCard:
    """The card of the encoder in a folder or under a hub id. Raises SleuthError if it cannot be loaded. None is the
    model's own `pooling`, and as a prefix the model's own, else its family's (`PREFIXES`), else none."""
    name = str(Path(model).resolve()) if Path(model).is_dir() else model
    loaded = _load(name, pooling)
    family = next((pair for part, pair in PREFIXES.items() if part in Path(name).name.lower().split("-")), ("", ""))
    own = {key: text for key, text in loaded.prompts.items() if text}
    return EncoderCard(
        model=name,
        query_prefix=own.get("query", family[0]) if query_prefix is None else query_prefix,
        passage_prefix=own.get("document", own.get("passage", family[1])) if passage_prefix is None else passage_prefix,
        pooling=pooling,
        width=int(loaded.get_embedding_dimension()),
    )


class Encoder:
    """The encoder of a card. Vectors are float32, of length 1: their inner product is the cosine."""

    def __init__(self, card: EncoderCard) -> None:
        """Raises SleuthError if the model cannot be loaded."""
        self.card = card
        self._model = _load(card.model, card.pooling)
        self._query_batch = 1 if self._model.device.type == "cpu" else PASSAGE_BATCH

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(n, width). On a CPU one by one, so that concurrent queries do not change the last bits; else in batches."""
        return self._encode([self.card.query_prefix + _replace_surrogates(text) for text in texts], self._query_batch)

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """(n, width): title and text of each, on two lines."""
        texts = [f"{self.card.passage_prefix}{passage.title}\n{passage.text}".strip() for passage in passages]
        return self._encode(texts, PASSAGE_BATCH)

    def _encode(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        if not texts:
            return np.empty((0, self.card.width), dtype=np.float32)
        vectors = self._model.encode(
            list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False, prompt=""
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def require_encoder(model: str) -> None:
    """Raises SleuthError unless `model` is available; a name without an owner is one of sentence-transformers'."""
    bare = "/" not in model and not Path(model).exists()
    require_model(f"sentence-transformers/{model}" if bare else model)


def _replace_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()  # tokenizers reject unpaired surrogates


def _load(model: str, pooling: str | None) -> Any:
    require_encoder(model)
    try:
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
        from sentence_transformers.sentence_transformer.modules import Pooling  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SleuthError(HOW_TO_INSTALL) from None
    from transformers.utils import logging

    logging.disable_progress_bar()  # `sleuth index` shows its own
    try:
        loaded: Any = SentenceTransformer(model, trust_remote_code=False).eval()
        if pooling is not None:
            loaded[1] = Pooling(loaded[0].get_embedding_dimension(), pooling_mode=cast(Any, pooling))
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(
            f"{model}: no sentence encoder could be loaded from this folder or hub id: {reason}"
        ) from None
    PROCESS.fit(sum(weight.numel() for weight in loaded.parameters()))
    return loaded
