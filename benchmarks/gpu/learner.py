"""Checks of the card and of the learner: tree attention, and the update of a Qwen3-0.6B."""

from __future__ import annotations

import random
import re
import statistics
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.flops import update_flops
from benchmarks.gpu.card import (
    allocated_bytes,
    describe,
    driver,
    forget_peak,
    peak_bytes,
    peak_flops,
    peak_of,
    product_flops,
    timed,
)
from benchmarks.gpu.checks import Check
from benchmarks.shapes import draw_rows
from sleuth.learn.attention import Branches, attend_tree
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, Update
from sleuth.learn.prefix_tree import PrefixTree, prefix_tree

OUTPUT_ERROR, GRADIENT_ERROR = 0.01, 0.02
"""Relative errors of attention in bf16, which rounds each number by up to 0.4 %."""
BUDGET_ERROR = 0.02
"""Relative error of a bf16 gradient between token budgets: each pass rounds its share."""
MASK_BYTES = 256e6
UTILISATION = 0.33
"""Share of the peak, where recomputed activations take a quarter of the operations and do not count."""


def card(check: Check) -> None:
    """The rate of a large product beside the data sheet's, and the card's clock and power during it."""
    reached = product_flops(check.device, check.scale.product)
    _found_clocks(check, reached)
    check.found("product of two matrices", reached / 1e12, "TFLOP/s")
    known = peak_flops(describe(check.device)["name"])
    if known is None:
        check.skip("the data sheet's rate: the card is not listed, so shares are of the product above")
        return
    check.found("data sheet, dense bf16", known / 1e12, "TFLOP/s")
    check.found("product, share of the data sheet", reached / known, at_least=0.5)


def _found_clocks(check: Check, rate: float) -> None:
    """What the driver says while the card computes products for two seconds, at a `rate` in FLOP/s."""
    if not driver(check.device):
        check.skip("clocks and power: there is no nvidia-smi that knows the card")
        return
    size = check.scale.product
    a, b = (torch.randn(size, size, device=check.device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(int(2 * rate / (2 * size**3))):
        torch.mm(a, b)
    answer = driver(check.device)
    torch.cuda.synchronize(check.device)
    for name in ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu"):
        number, _, unit = answer.get(name, "").partition(" ")
        if re.fullmatch(r"[\d.]+", number):
            check.found(f"under load: {name}", float(number), unit)


def attention(check: Check) -> None:
    """Tree attention of random trees, forward and backward, beside a dense mask in fp32; and one pass of a whole
    budget."""
    errors: dict[str, list[float]] = {}
    for seed in range(check.scale.trees):
        tree = random_tree(random.Random(seed), *check.scale.tree_tokens)
        for name, error in attention_errors(check, tree, seed).items():
            errors.setdefault(name, []).append(error)
    for name, found in errors.items():
        bar = OUTPUT_ERROR if name == "output" else GRADIENT_ERROR
        check.found(f"{name}, {len(found)} trees", max(found), at_most=bar)
    if check.on_card:
        from torch._dynamo.utils import counters  # which other checks can do without

        check.found("graphs that were compiled", counters["stats"]["unique_graphs"], at_most=4)
    _time_budget(check)


def random_tree(draw: random.Random, least: int, most: int) -> PrefixTree:
    """A tree of about `least` to `most` tokens: groups whose rows branch anywhere, also inside branches."""
    left, rows = draw.randint(least, most), []
    while left > 0:
        group = [_tokens(draw, min(left, draw.randint(1, most // 8)))]
        left -= len(group[0])
        for _ in range(draw.randint(1, 7) if left > 0 else 0):
            before, branch = draw.choice(group), _tokens(draw, draw.randint(1, most // 12))
            group.append(before[: draw.randint(1, len(before))] + branch)
            left -= len(branch)
        rows += group
    return prefix_tree(collate([Row(tokens=row, trained=(True,) * len(row)) for row in rows]))


def _tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(1_000) for _ in range(count))


def windows(check: Check) -> None:
    """The same with a sliding window, which some families have."""
    draw, found = random.Random("windows"), {}
    for seed in range(-(-check.scale.trees // 4)):
        errors = attention_errors(check, random_tree(draw, *check.scale.tree_tokens), seed, check.scale.prompt)
        for name, error in errors.items():
            found.setdefault(name, []).append(error)
    for name, errors in found.items():
        bar = OUTPUT_ERROR if name == "output" else GRADIENT_ERROR
        check.found(f"{name}, {len(errors)} trees", max(errors), at_most=bar)


def attention_errors(check: Check, tree: PrefixTree, seed: int, window: int | None = None) -> dict[str, float]:
    """Relative errors (2-norm) of output and gradients in bf16 to a dense mask with the same inputs in fp32."""
    inputs = _inputs(check, len(tree), seed)
    output = attend(check, tree, inputs, window)
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed)).to(output)
    gradients = torch.autograd.grad(output, inputs, arriving)
    exact_inputs = [tensor.detach().float().requires_grad_() for tensor in inputs]
    exact = dense(tree.to(check.device), *exact_inputs, window)
    exact_gradients = torch.autograd.grad(exact, exact_inputs, arriving.float())
    pairs = zip(
        ("output", "gradient of queries", "gradient of keys", "gradient of values"),
        (output, *gradients),
        (exact, *exact_gradients),
        strict=True,
    )
    return {name: relative_error(ours, theirs) for name, ours, theirs in pairs}


def attend(check: Check, tree: PrefixTree, inputs: list[Tensor], window: int | None = None) -> Tensor:
    """Tree attention as in a layer of the model."""
    branches = Branches(tree.to(check.device), inputs[0].dtype)
    return attend_tree(SimpleNamespace(layer_idx=0), *inputs, None, branches=branches, sliding_window=window)[0]


def dense(tree: PrefixTree, query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    """(1, N, H, D) by the ancestor test, and that of the window, on the whole square."""
    sharing = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(sharing, dim=1) for tensor in (key, value))
    at = torch.arange(len(tree), device=query.device)
    visible = (at[None] <= at[:, None]) & (at[:, None] < tree.ends[None])
    if window is not None:
        visible &= tree.positions[:, None] - tree.positions[None] < window
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """The 2-norm of the difference over that of `exact`."""
    ours, exact = ours.detach().float(), exact.detach().float()
    return float((ours - exact).norm() / exact.norm())


def _inputs(check: Check, tokens: int, seed: int) -> list[Tensor]:
    """Random queries, keys and values (1, heads, N, D) in bf16."""
    scale, generator = check.scale, torch.Generator().manual_seed(seed)
    sizes = [(1, heads, tokens, scale.head_dim) for heads in (scale.heads, scale.kv_heads, scale.kv_heads)]
    tensors = [torch.randn(size, generator=generator).to(check.device, torch.bfloat16) for size in sizes]
    return [tensor.requires_grad_() for tensor in tensors]


def _time_budget(check: Check) -> None:
    """Seconds of a pass over a whole budget, and what its mask takes."""
    budget = check.scale.budget
    tree = random_tree(random.Random("budget"), budget * 3 // 4, budget)
    before = allocated_bytes(check.device)
    forget_peak(check.device)
    branches = Branches(tree.to(check.device), torch.bfloat16)
    peak = peak_bytes(check.device)
    if peak is not None:
        check.found(f"mask of {len(tree):,} tokens", peak - before, "bytes", at_most=MASK_BYTES)
    inputs = _inputs(check, len(tree), 0)

    def step() -> None:
        output, _ = attend_tree(SimpleNamespace(layer_idx=0), *inputs, None, branches=branches)
        torch.autograd.grad(output, inputs, output.detach())

    seconds = [timed(check.device, step) for _ in range(5)]
    check.found(f"forward, backward of {len(tree):,}", 1e3 * statistics.median(seconds[2:]), "ms")


def update(check: Check) -> None:
    """Updates of the model at the recipe's budget: gradients between budgets, the share of the peak, and memory."""
    scale, device = check.scale, check.device
    policy = open_policy(check)
    batch = collate(draw_rows(scale.gradient))
    whole = policy.gradient(batch, PolicyLoss(), budget=scale.budget)[1]
    parts = policy.gradient(batch, PolicyLoss(), budget=scale.small_budget)[1]
    check.found("gradients by budget, error", relative_error(parts, whole), at_most=BUDGET_ERROR)
    again = policy.gradient(batch, PolicyLoss(), budget=scale.budget)[1]
    check.found("gradients again: other numbers", int((again != whole).sum()), at_most=0)
    del whole, parts, again
    forget_peak(device)
    rows = draw_rows(scale.update)
    made: list[Update] = []

    def step() -> None:
        made.append(policy.update(collate(rows), PolicyLoss(), budget=scale.budget))

    seconds = statistics.median([timed(device, step) for _ in range(3)][1:])
    check.found(f"update of {made[-1].tokens_computed:,} tokens", seconds, "s")
    check.found("tokens computed", made[-1].tokens_computed / seconds, "tokens/s")
    check.found("gradient norm", made[-1].gradient_norm, at_least=1e-9)
    found_utilisation(check, update_flops(rows, scale.config()) / seconds, bar=UTILISATION)
    if (most := peak_bytes(device)) is not None:
        check.found("peak memory", most / 1e9, "GB")


def found_utilisation(check: Check, rate: float, *, bar: float | None = None, way: str = "") -> None:
    """Records a rate in FLOP/s as a share of the card's."""
    peak, of_what = peak_of(check.device, check.scale.product)
    floor = None if bar is None else check.speed_bar(bar)
    check.found(f"{way}utilisation, of {of_what}", rate / peak, at_least=floor)


def kept_bytes(check: Check, policy: Policy, tokens: int) -> int:
    """Records how many layers kept their activations in the last pass; their bytes beyond those of inputs, for a pass
    of so many tokens, which the plan counts as recomputed."""
    recomputation = policy._recomputation
    card_pass = None if recomputation is None else recomputation._card_pass
    if recomputation is None or card_pass is None:
        return 0
    kept = recomputation._kept
    check.found("layers that kept activations", kept)
    return kept * tokens * (card_pass.layer - card_pass.size * card_pass.width)


def open_policy(check: Check, model: PreTrainedModel | None = None, *, recomputes: bool = True) -> Policy:
    """A random model in training, as the recipe sets it up."""
    optimisation = Optimisation(steps=10, learning_rate=1e-6, betas=(0.9, 0.98))
    model = check.scale.model(check.device) if model is None else model
    return Policy(model, optimisation, gradient_checkpointing=recomputes)
