"""A cross-encoder trained on entailment as a judge: no server and no prompt, so that no text can instruct it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sleuth.judges.forms import replace_surrogates
from sleuth.judges.lexical import as_support
from sleuth.model_path import require_model
from sleuth.threads import PROCESS
from sleuth.types import Case, SleuthError, Verdict

OVERLAP = 32
"""Tokens shared by neighbouring windows of a long evidence."""
MIN_WINDOW = 2 * OVERLAP
"""Tokens of evidence that must fit beside a claim."""
SPARE = 8
"""Tokens left free: a window that starts inside a sentence may be tokenised differently."""
DEFAULT_MAX_TOKENS = 512


class NliJudge:
    """A `Judge` of support by any sequence classifier with a label for entailment, from a folder or a hub id.

    The score is the probability of that label, evidence before claim. Long evidence is read in windows and the best one
    counts; a claim that leaves no room for evidence has a missing verdict. A criterion is a statement that the answer
    should entail. Cases are not batched, so that a score does not depend on the other cases.
    """

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        """Raises SleuthError if the model cannot be loaded or no single label means entailment."""
        self._name = model
        self._model, self._tokenizer = _load(model)
        self._model.to(device)
        PROCESS.fit(sum(weight.numel() for weight in self._model.parameters()))
        self._entailment = entailment_label(self._model.config.id2label, model)
        positions = getattr(self._model.config, "max_position_embeddings", DEFAULT_MAX_TOKENS)
        self._max_tokens = min(self._tokenizer.model_max_length, positions - 2)  # some families start positions at 2

    @property
    def identity(self) -> str:
        """The model's name and a hash of its weights."""
        return f"nli {self._name} {self._digest}"

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()[:16]

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict between 0 and 1 for each case."""
        return [await asyncio.to_thread(self._verdict, case) for case in cases]

    def _verdict(self, case: Case) -> Verdict:
        case = as_support(case)
        claim, evidence = replace_surrogates(case.claim), replace_surrogates(case.evidence)
        if not claim.strip() or not evidence.strip():
            return Verdict(score=0.0, reason="there is no claim" if not claim.strip() else "there is no evidence")
        windows = self._windows(claim, evidence)
        if not windows:
            return Verdict(score=None, reason="the claim leaves no room for evidence in what this judge can read")
        score, window = max((self._probability(claim, window), window) for window in windows)
        return Verdict(score=score, reason=f"entailed with probability {score:.3f}", evidence=window)

    def _windows(self, claim: str, evidence: str) -> list[str]:
        """The evidence in windows that fit beside the claim; empty if they would be too short."""
        claim_tokens = len(self._tokenizer(claim, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        room = self._max_tokens - claim_tokens - self._tokenizer.num_special_tokens_to_add(pair=True)
        offsets = self._tokenizer(
            evidence, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )["offset_mapping"]
        if len(offsets) <= room:
            return [evidence]
        room -= SPARE
        if room < MIN_WINDOW:
            return []
        starts = range(0, len(offsets) - OVERLAP, room - OVERLAP)
        return [evidence[offsets[start][0] : offsets[min(start + room, len(offsets)) - 1][1]] for start in starts]

    def _probability(self, claim: str, evidence: str) -> float:
        import torch

        inputs = self._tokenizer(evidence, claim, return_tensors="pt", split_special_tokens=True).to(self._model.device)
        with torch.inference_mode():
            logits = self._model(**inputs).logits[0].float()
        return float(logits.softmax(dim=-1)[self._entailment])


def entailment_label(labels: Mapping[int, str], model: str) -> int:
    """The index of the entailment label. Raises SleuthError unless exactly one label says so: a wrong guess would
    invert the verdicts."""
    entailing = [index for index, label in labels.items() if label.lower() in ("entailment", "entailed", "entails")]
    if len(entailing) != 1:
        raise SleuthError(
            f"{model}: its labels are {', '.join(labels.values())}, and not exactly one of them is entailment; set "
            "id2label in its config.json"
        )
    return entailing[0]


def _load(model: str) -> tuple[Any, Any]:
    require_model(model)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # only our own bar is shown
    try:
        loaded = AutoModelForSequenceClassification.from_pretrained(model, trust_remote_code=False).eval()
        return loaded, AutoTokenizer.from_pretrained(model, use_fast=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SleuthError(f"{model}: no cross-encoder could be loaded from this folder or hub id: {reason}") from None
