"""Checks of what a Qwen3-0.6B of search episodes does not show: larger models, adapters, long prompts, and long texts;
each decodes and updates little."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import torch
from transformers import PreTrainedModel

from benchmarks.flops import update_flops
from benchmarks.gpu.card import forget_peak, peak_bytes, release, timed
from benchmarks.gpu.checks import Check, plan_lacks
from benchmarks.gpu.learner import found_utilisation, kept_bytes, open_policy
from benchmarks.gpu.sampler import SIBLINGS, Tokens, Written, clocked, continue_all, drawn, found_step, open_engine
from benchmarks.gpu.scales import shaped
from benchmarks.gpu.watched import watched
from benchmarks.shapes import draw_rows
from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.policy import Policy, Update

ROWS = 128
"""Requests that decode together."""
CONTEXT = 1_024
WARMED = 8
"""Decode steps before those that are watched, in which a graph is captured."""
LORA = Adapters(
    rank=16, alpha=32.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
)
UPDATES = 2
"""Updates that are timed, after the one that compiles."""
SPARE = 4e9
"""Bytes of an update beside weights, state, gradients and what layers keep: logits, one layer's work, libraries."""


def qwen3_1_7b(check: Check) -> None:
    """Decode steps and whole updates of the shape of Qwen3-1.7B."""
    _size(replace(check, scale=shaped(check.scale, "qwen3_1.7b")))


def qwen2_5_3b(check: Check) -> None:
    """The same of Qwen2.5-3B."""
    _size(replace(check, scale=shaped(check.scale, "qwen2.5_3b")))


def qwen3_4b_lora(check: Check) -> None:
    """Decode steps of the shape of Qwen3-4B, alone and with adapters of rank 16 on all matrices, and updates of
    these."""
    check = replace(check, scale=shaped(check.scale, "qwen3_4b"))
    _decode(check, check.scale.model(check.device), _prompts(check), way="alone: ")
    release(check.device)
    if find_spec("peft") is None:
        check.skip("adapters: no peft")
        return
    model = check.scale.model(check.device)
    add_adapters(model, LORA, seed=0)
    _decode(check, model, _prompts(check), way="adapters: ")
    _learn(check, model, draw_rows(check.scale.size), adapters=True)


def refiner(check: Check) -> None:
    """Requests and updates of refiners: siblings of prompts that are long beside their answers."""
    shape, draw = check.scale.refiner, random.Random("refiner")
    prompts = [drawn(check, draw, shape.prompt) for _ in range(check.scale.requests // SIBLINGS)]
    model = check.scale.model(check.device)
    _decode(check, model, [prompt for prompt in prompts for _ in range(SIBLINGS)], context=shape.length + 64)
    _learn(check, model, draw_rows(shape))


def long(check: Check) -> None:
    """One long text: read, continued, and learned from, where its last eighth is trained."""
    count, draw = check.scale.text, random.Random("long")
    text = drawn(check, draw, count)
    model = check.scale.model(check.device)
    _decode(check, model, [text], context=count + 128)
    trained = count // 8
    row = Row(tokens=text, trained=(False,) * (count - trained) + (True,) * trained, advantage=1.0)
    _learn(check, model, [row])


def _size(check: Check) -> None:
    model = check.scale.model(check.device)
    weights = sum(weight.numel() for weight in model.parameters())
    check.found("weights", weights / 1e9, "billions")
    _decode(check, model, _prompts(check))
    _learn(check, model, draw_rows(check.scale.size))


def _prompts(check: Check) -> list[Tokens]:
    """Prompts of one length, with siblings."""
    count, draw = min(ROWS, check.scale.requests), random.Random("sizes")
    prompts = [drawn(check, draw, check.scale.prompt) for _ in range(count // SIBLINGS)]
    return [prompt for prompt in prompts for _ in range(SIBLINGS)]


def _decode(
    check: Check, model: PreTrainedModel, requests: Sequence[Tokens], *, way: str = "", context: int = CONTEXT
) -> None:
    """Prompts that are read, and decode steps of all requests together. Others are read before, to load all code."""
    engine = open_engine(check, model, check.scale.tokenizer(), slots=len(requests), context=context)
    warm = [(number, *requests[0][1:]) for number in range(min(8, len(requests)))]
    continue_all(engine, [Written(prompt=prompt) for prompt in warm], 3)
    engine.publish(0)
    written, before = [Written(prompt=prompt) for prompt in requests], engine.tokens_prefilled
    (written, _), seconds = clocked(check, lambda: continue_all(engine, written, 1))
    check.found(f"{way}prompts read", (engine.tokens_prefilled - before) / seconds, "tokens/s")
    check.found(f"{way}prompts read in", seconds, "s")
    written, _ = continue_all(engine, written, WARMED)
    with watched(check) as watch:
        written, _ = continue_all(engine, written, check.scale.decode // 2)
    check.found(f"{way}requests", len(written))
    found_step(check, way, watch, model, written)
    engine.sleep()


def _learn(check: Check, model: PreTrainedModel, rows: Sequence[Row], *, adapters: bool = False) -> None:
    """Updates on these rows in one pass, as the recipe sets them up, where the card has room for them."""
    device, budget = check.device, max(check.scale.budget // 2, *(len(row.tokens) for row in rows))
    release(device)
    needed = needed_bytes(model, budget)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_allocated(device) if check.on_card else needed
    if needed > free:
        check.skip(f"updates: {needed / 1e9:.0f} GB are needed, and the card has {free / 1e9:.0f} GB for them")
        return
    policy = open_policy(check, model)
    made: list[Update] = []

    def update() -> None:
        made.append(policy.update(collate(rows), PolicyLoss(), budget=budget))

    check.found("the first update, compiling included", timed(device, update), "s")
    forget_peak(device)
    seconds = min(timed(device, update) for _ in range(UPDATES))
    check.found(f"update of {made[-1].tokens_computed:,} tokens", seconds, "s")
    check.found("tokens computed", made[-1].tokens_computed)
    check.found("tokens learned from", made[-1].tokens_computed / seconds, "tokens/s")
    check.found("gradient norm", made[-1].gradient_norm, at_least=1e-9)
    found_utilisation(check, update_flops(rows, check.scale.config(), frozen=adapters) / seconds)
    if (most := peak_bytes(device)) is not None:
        check.found("peak memory", most / 1e9, "GB")
        found_plan(check, policy, rows, most)


def needed_bytes(model: PreTrainedModel, tokens: int) -> float:
    """About the bytes that updates in passes of `tokens` take, activations recomputed: 2 of each weight, for each that
    is trained 12 of state, 4 of summed and 2 of own gradients, and 4 of the embedding."""
    held = sum(weight.nbytes for weight in model.parameters())
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    stepped = 18 * sum(weight.numel() for weight in trained)
    embedding = model.get_input_embeddings().weight
    config = model.config
    summed = 4 * embedding.numel() if embedding.requires_grad else 0  # type: ignore[union-attr]
    return held + stepped + summed + 2 * tokens * config.num_hidden_layers * config.hidden_size + SPARE


def found_plan(check: Check, policy: Policy, rows: Sequence[Row], most: int) -> None:
    """The peak memory over that of the plan, where its packages are."""
    if (lacking := plan_lacks()) is not None:
        check.skip(f"peak memory beside the plan's: no {lacking}")
        return
    tokens = min(sum(len(row.tokens) for row in rows), max(check.scale.budget // 2, len(rows[0].tokens)))
    planned = planned_update(check, policy, tokens) + kept_bytes(check, policy, tokens)
    check.found("peak memory, of the plan's", most / planned, at_most=1.1)


def planned_update(check: Check, policy: Policy, tokens: int) -> int:
    """The bytes that the plan counts for an update in a pass of so many tokens, without what a process holds before."""
    from benchmarks.gpu.speeds import learner_of  # needs pydantic
    from sleuth.plan.memory import total

    learner = learner_of(check.scale, adapters=not all(weight.requires_grad for weight in policy.model.parameters()))
    return max(total(learner.update(tokens, tokens)[0]), total(learner.optimiser_step()[0]))
