"""Ranks whose learner gives its weights to servers, and what each of them holds meanwhile."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from emulator.no_card import no_card
from learners import LORA, SETTINGS, step
from pools import Pools, Requests, asked

from sleuth.engines.remote.published import published_in_memory
from sleuth.learn import shards
from sleuth.learn.adapters import add_adapters, merged_state
from sleuth.learn.master_weights import MasterWeights, WeightSource, learner_logprobs
from sleuth.learn.models import load_model
from sleuth.learn.policy import Policy
from sleuth.learn.shards import Shards
from sleuth.ranks import Ranks
from sleuth.training.rollout_worker import Background
from sleuth.types import Completion, Sampling

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
BUCKET = 100_000  # bytes


def policy_of_base(ranks: Ranks, dtype: str = "float32", lora: bool = False) -> tuple[Policy, Any]:
    """The tiny base model in shards, and its tokenizer."""
    model, tokenizer = load_model(str(BASE), dtype=dtype, device="cpu")
    if lora:
        add_adapters(model, LORA, seed=0)
    return Policy(model, SETTINGS, holding=MasterWeights if ranks.alone else partial(Shards, ranks=ranks)), tokenizer


def live_bytes() -> int:
    """Of all tensors of this process, each memory once."""
    gc.collect()
    storages = {}
    for item in gc.get_objects():
        if isinstance(item, torch.Tensor) and item.device.type == "cpu":
            local = item.to_local() if hasattr(item, "to_local") else item
            storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


def gathered(ranks: Ranks, dtype: str, lora: bool) -> dict[str, Any]:
    """What a rank knows of weights that all gather: the weights, the most that it held beside its shard, and the label
    and log-probabilities that it would have as one process."""
    policy, _ = policy_of_base(ranks, dtype, lora)
    step(policy, "supervise", 1)
    masters = policy.masters
    whole, alone = WeightSource(policy.model), {}
    alone["weights"] = {name: weight.clone() for name, weight in merged_state(policy.model).items()}
    alone["label"] = published_in_memory(whole, Path(), 1).label
    alone["logprobs"] = whole.logprobs([5, 6, 7], [8, 9, 300], 0.7)
    if ranks.alone:
        return alone
    found: dict[str, Any] = {"alone": alone, "sizes": []}
    masters.stay_in_shards()
    source, before, peaks = masters.source(), [live_bytes()], [0]
    read, sent = Shards.read, list[weakref.ref[torch.Tensor]]()
    found["lingering"] = 0  # weights of a bucket, while those of the next are gathered

    def watched(held: Shards, weight: torch.Tensor) -> torch.Tensor:
        whole = read(held, weight)
        peaks.append(live_bytes() - before[0])
        found["lingering"] += sum(reference() is not None for reference in sent)
        return whole

    def read_all() -> None:
        found["logprobs"] = source.logprobs([5, 6, 7], [8, 9, 300], 0.7)
        found["label"] = published_in_memory(source, Path(), 1).label
        found["outline"] = [(name, weight.dtype, tuple(weight.shape)) for name, weight in source.outline().items()]
        found["weights"] = {}
        for bucket in source.buckets():
            found["sizes"].append(sum(weight.nbytes for weight in bucket.values()))
            kept = {name: weight.clone() for name, weight in bucket.items()}
            before[0] += sum(weight.nbytes for weight in kept.values())
            found["weights"] |= kept
            sent[:] = map(weakref.ref, bucket.values())

    with patch.object(shards, "BUCKET", BUCKET), patch.object(Shards, "read", watched):
        source.together(read_all)
    found["peak"] = max(peaks)
    found["model"] = sum(weight.numel() for name, weight in policy.model.named_parameters() if ".lora_" not in name)
    with masters.whole():
        found["restored"] = {name: weight.clone() for name, weight in merged_state(policy.model).items()}
    step(policy, "supervise", 2)
    found["after"] = sum(weight.numel() for name, weight in policy.model.named_parameters() if ".lora_" not in name)
    return found


def published(
    ranks: Ranks, urls: Sequence[str], folder: Path, requests: Requests, how: dict[str, Any]
) -> tuple[list[Completion], list[list[float]], list[str]]:
    """Turns of servers that these ranks have given their weights twice, with an update before each; the learner's
    log-probabilities of them, and the lines of the pool."""
    policy, tokenizer = policy_of_base(ranks, lora=how.get("lora", False))
    with ExitStack() as stack:
        if how.get("card"):
            stack.enter_context(no_card())
        stack.enter_context(patch.object(shards, "BUCKET", BUCKET))
        pools = Pools(policy.model, tokenizer, folder, lambda *_: [], context=512)
        limits = {"unavailable_timeout": 300.0, "seconds": 60.0}
        engine = pools.open([SimpleNamespace(url=url) for url in urls], ranks=ranks, published=False, **limits)
        engine.read_from(policy.masters.source())
        policy.masters.stay_in_shards()
        for version in (1, 2):
            step(policy, "supervise", version)
            engine.publish(version)
        turns = asked(engine, requests)
        with policy.masters.whole():
            ours = [
                learner_logprobs(policy.model, before, turn.tokens, 1.0)
                for (before, _), turn in zip(requests, turns, strict=True)
            ]
        engine.figures()
    return turns, ours, pools.lines


def across_updates(
    ranks: Ranks, urls: Sequence[str], folder: Path
) -> tuple[list[Completion], list[dict[int, list[float]]], dict[str, float]]:
    """Turns that a rank begins before two updates, the learner's log-probabilities of them by its version, and the
    figures of the pool."""
    policy, tokenizer = policy_of_base(ranks)
    pools = Pools(policy.model, tokenizer, folder, lambda *_: [], context=512)
    engine = pools.open([SimpleNamespace(url=url) for url in urls], ranks=ranks, published=False, max_policy_lag=3)
    engine.read_from(policy.masters.source())
    policy.masters.stay_in_shards()
    engine.publish(1)
    keys = [(0, 0, 1, 2 * at + ranks.rank, 0, 0) for at in range(4)]
    requests = [([5, 6, 7, 300 + key[3]], Sampling(max_tokens=32, temperature=1.0, key=key)) for key in keys]
    models = {}
    with closing(Background()) as background:
        turns = [background.submit(engine.complete(*request)) for request in requests]
        for version in (1, 2, 3):
            if version > 1:
                time.sleep(0.5)  # some tokens of the version before
                step(policy, "supervise", version)
                engine.publish(version)
            with policy.masters.whole():
                models[version] = copy.deepcopy(policy.model)
        completions = [turn.result() for turn in turns]
    logprobs = [
        {version: learner_logprobs(model, before, turn.tokens, 1.0) for version, model in models.items()}
        for (before, _), turn in zip(requests, completions, strict=True)
    ]
    return completions, logprobs, engine.figures()
