"""Sentence encoders: text to unit vectors by any model of sentence-transformers (extra `dense`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from sleuth.host.checksums import file_sha256
from sleuth.host.escapes import replace_surrogates
from sleuth.host.model_path import require_model
from sleuth.host.threads import PROCESS
from sleuth.retrieval.index_card import EncoderCard
from sleuth.retrieval.vectors import HOW_TO_INSTALL
from sleuth.types import Passage, SleuthError

PREFIXES = {"e5": ("query: ", "passage: ")}
"""Query and passage prefixes of model families, by a part of the model's name. E5: arXiv:2212.03533."""
PASSAGE_BATCH = 32
QUERY_ROWS, MIN_TOKENS = 32, 16  # the shape of a batch of queries: so many rows, and a power of two of tokens


def encoder_card(
    model: str, *, query_prefix: str | None = None, passage_prefix: str | None = None, pooling: str | None = None
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
        pooling=pooling or _own_pooling(loaded),
        width=int(loaded.get_embedding_dimension()),
        weights_sha256=_weights_sha256(name),
    )


class Encoder:
    """The encoder of a card. Vectors are float32, of length 1: their inner product is the cosine."""

    def __init__(self, card: EncoderCard) -> None:
        """Raises SleuthError if the model cannot be loaded, or has other weights than its card says."""
        self._model = _load(card.model, card.pooling)
        now = _weights_sha256(card.model) or card.weights_sha256
        if card.weights_sha256 not in (None, now):
            raise SleuthError(
                f"{card.model}: weights {str(now)[:12]}, and the vectors were made with {card.weights_sha256[:12]}: "
                "queries would be encoded by another model; restore those weights, or make the index again"
            )
        # What cards of earlier versions lack.
        self.card = replace(card, weights_sha256=now, pooling=card.pooling or _own_pooling(self._model))
        self.fixed_shapes = self._model.device.type != "cpu"

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(n, width). The bits of a vector do not depend on the other queries: they are encoded one by one on a CPU,
        where that costs least, else in batches of fixed shapes (`fixed_shapes`)."""
        prefixed = [self.card.query_prefix + replace_surrogates(text) for text in texts]
        return self._in_fixed_shapes(prefixed) if self.fixed_shapes and prefixed else self._encode(prefixed, 1)

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """(n, width): title and text of each, on two lines."""
        texts = [f"{self.card.passage_prefix}{passage.title}\n{passage.text}".strip() for passage in passages]
        return self._encode(texts, PASSAGE_BATCH)

    def _in_fixed_shapes(self, texts: Sequence[str]) -> np.ndarray:
        """Each text in a batch of `QUERY_ROWS` rows, whose number of tokens follows from that text alone."""
        import torch

        tokens = [self._model.preprocess([text]) for text in texts]
        by_length: dict[int, list[int]] = {}
        for at, one in enumerate(tokens):
            length = max(MIN_TOKENS, 1 << (one["input_ids"].shape[1] - 1).bit_length())
            by_length.setdefault(length, []).append(at)
        vectors = np.empty((len(texts), self.card.width), dtype=np.float32)
        for length, members in by_length.items():
            for start in range(0, len(members), QUERY_ROWS):
                chosen = members[start : start + QUERY_ROWS]
                filled = chosen + chosen[:1] * (QUERY_ROWS - len(chosen))
                batch = _padded([tokens[at] for at in filled], length, self._model.tokenizer)
                with torch.inference_mode():
                    moved = {k: v.to(self._model.device) if hasattr(v, "to") else v for k, v in batch.items()}
                    rows = self._model(moved)["sentence_embedding"][: len(chosen)]
                    vectors[chosen] = torch.nn.functional.normalize(rows.float(), dim=1).cpu().numpy()
        return vectors

    def _encode(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        if not texts:
            return np.empty((0, self.card.width), dtype=np.float32)
        vectors = self._model.encode(
            list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False, prompt=""
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def require_encoder(model: str) -> None:
    """Raises SleuthError unless `model` is available."""
    require_model(_with_owner(model))


def _with_owner(model: str) -> str:
    """A name without an owner is one of sentence-transformers'."""
    return model if "/" in model or Path(model).exists() else f"sentence-transformers/{model}"


def _weights_sha256(model: str) -> str | None:
    """The sha256 of a model's file of weights, which the hub states too; of several files, that of their list. None if
    none is found."""
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(_with_owner(model), local_files_only=True))
        except LocalEntryNotFoundError:
            return None
    files = sorted(folder.rglob("*.safetensors")) or sorted(folder.rglob("*.bin"))
    if len(files) < 2:
        return file_sha256(files[0]) if files else None
    listed = (f"{file_sha256(file)}  {file.relative_to(folder).as_posix()}\n" for file in files)
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def _padded(rows: Sequence[dict[str, Any]], length: int, tokenizer: Any) -> dict[str, Any]:
    """One batch of single rows, each filled to `length` tokens on the tokenizer's side."""
    import torch

    batch: dict[str, Any] = {}
    for name, value in rows[0].items():
        if not isinstance(value, torch.Tensor):
            batch[name] = value
            continue
        fill = tokenizer.pad_token_id if name == "input_ids" else 0
        missing = [length - row[name].shape[1] for row in rows]
        sides = [(count, 0) if tokenizer.padding_side == "left" else (0, count) for count in missing]
        filled = (torch.nn.functional.pad(row[name], side, value=fill) for row, side in zip(rows, sides, strict=True))
        batch[name] = torch.cat([*filled])
    return batch


def _own_pooling(loaded: Any) -> str | None:
    mode = next((part.pooling_mode for part in loaded if hasattr(part, "pooling_mode")), None)
    return mode if isinstance(mode, str) else None  # several modes are no setting of ours


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
        if pooling not in (None, _own_pooling(loaded)):
            loaded[1] = Pooling(loaded[0].get_embedding_dimension(), pooling_mode=cast(Any, pooling))
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(
            f"{model}: no sentence encoder could be loaded from this folder or hub id: {reason}"
        ) from None
    PROCESS.fit(sum(weight.numel() for weight in loaded.parameters()))
    return loaded
