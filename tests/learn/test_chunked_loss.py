from __future__ import annotations

import random
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from padded import group_rows, padded_logprobs, whole
from tiny_models import FAMILIES, VOCABULARY, in_float64
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from sleuth.learn.attention import ActivationBoundary
from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import PassFigures, SubtreeChunk, add_gradients, subtree_chunks, token_loss, tree_attention
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.prefix_tree import prefix_tree
from sleuth.learn.recomputation import recomputed_layers

LOSS = PolicyLoss(old_logprobs="sampler", clip_low=0.2, clip_high=0.28)
MODELS = {name: make().eval() for name, make in FAMILIES.items()}


def searchers(groups: int = 2, seed: int = 0) -> list[Row]:
    """A prompt, a query that some siblings share with all that came back, an answer: the trunk is trained too."""
    draw = random.Random(seed)

    def some(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(count))

    trained = (*[False] * 12, *[True] * 4, *[False] * 20, *[True] * 8)
    rows = []
    for _ in range(groups):
        prompt, turn = some(12), some(24)
        tokens = [(*prompt, *(turn if sibling < 3 else some(24)), *some(8)) for sibling in range(5)]
        rows += [Row(tokens=row, trained=trained, advantage=draw.uniform(-2, 2)) for row in tokens]
    return rows


def added(model, *arguments, **options) -> tuple[PassFigures, dict[str, torch.Tensor]]:
    model.zero_grad()
    told = add_gradients(model, *arguments, **options)
    return told, {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def relative_error(ours, theirs) -> float:
    assert ours.keys() == theirs.keys()
    difference = sum((ours[name] - theirs[name]).square().sum() for name in theirs).sqrt()
    return float(difference / sum(gradient.square().sum() for gradient in theirs.values()).sqrt())


def compare(model, draw: random.Random, budget: int, tolerance: float) -> None:
    rows = group_rows(draw, groups=draw.randint(1, 3), siblings=draw.randint(1, 5), longest=draw.randint(1, 16))
    batch = collate(rows)
    if not batch.trained.any():
        return
    expected = padded_logprobs(model, batch)
    loss = LOSS(batch, expected, None)[0]
    model.zero_grad()
    loss.backward()
    theirs = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    told, ours = added(model, whole(batch), LOSS, budget=budget)
    assert told.loss.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(told.logprobs, expected.detach(), rtol=0, atol=1e-4 if tolerance > 1e-8 else 1e-10)
    assert relative_error(ours, theirs) <= tolerance


draws, budgets = st.integers(0, 10**6).map(random.Random), st.sampled_from([1, 10, 25, 60, 10**6])


@given(draw=draws, budget=budgets, bush=st.sampled_from([0, 6, 128]))
@settings(max_examples=40, deadline=None)
def test_limb_by_limb_the_gradients_of_any_tree_equal_those_of_padded_rows(draw, budget, bush):
    with patch("sleuth.learn.attention.MAX_MASK_TOKENS", bush):
        compare(MODELS[draw.choice(sorted(MODELS))], draw, budget, 1e-5)  # fp32 adds in another order


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("budget", [1, 50, 90])
def test_a_trained_trunk_and_layers_that_run_again_change_no_gradient(make_model, recompute, budget):
    model, part = in_float64(make_model()), whole(collate(searchers()))
    share, logprobs, entropy = token_loss(model, part, LOSS)
    model.zero_grad()
    share.backward()
    theirs = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    layers = recomputed_layers(model) if recompute else []
    with tree_attention(model):
        for module in layers:
            module.training = True
        told, ours = added(model, part, LOSS, budget=budget)
    for mine, expected in ((told.loss, share), (told.logprobs, logprobs), (told.entropy, entropy)):
        torch.testing.assert_close(mine, expected.detach(), rtol=0, atol=1e-12)
    assert relative_error(ours, theirs) < 1e-11


def test_each_token_is_computed_once_whatever_the_budget(make_model):
    model, part = make_model(), whole(collate(searchers()))
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.extend(args[0][0].tolist()))
    for budget in (1, 50, 90, 10**6):
        seen.clear()
        told = add_gradients(model, part, LOSS, budget=budget)
        assert told.computed == len(part.tree)
        assert seen == part.tree.tokens.tolist(), "in the tree's order"


def test_no_more_is_kept_for_the_backward_pass_than_a_path_of_limbs(make_model):
    model, part = make_model(), whole(collate(searchers(groups=6)))
    kept = {"now": 0, "most": 0}

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            kept["now"] += tensor.numel()
            kept["most"] = max(kept["most"], kept["now"])

        def __del__(self) -> None:
            kept["now"] -= self.tensor.numel()

    most = {}
    for budget in (1, 120, 10**6):
        kept["most"] = 0
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            add_gradients(model, part, LOSS, budget=budget)
        assert kept["now"] == 0
        most[budget] = kept["most"]
    # 6 groups of 156 tokens; a path is at most 12 of a prompt, 24 of a shared turn and 8.
    assert most[1] < most[10**6] / 6
    assert most[1] < most[120] < most[10**6] / 3


def test_gradients_are_collected_behind_each_limb(make_model):
    """Those of 16-bit weights add up in fp32: they are taken away each time."""
    model, part = make_model(), whole(collate(searchers()))
    _, together = added(model, part, LOSS, budget=50)
    model.zero_grad()
    sums = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    calls = []

    def collect() -> None:
        calls.append(1)
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                sums[name] += weight.grad
                weight.grad = None

    add_gradients(model, part, LOSS, budget=50, collect=collect)
    assert len(calls) == len(list(subtree_chunks(part.tree.ends, 50)))
    assert relative_error(sums, together) < 1e-5  # fp32 adds in another order


def test_where_nothing_below_learns_only_what_is_above_it_gets_a_gradient(make_model):
    model, part = make_model(), whole(collate(searchers()))
    model.requires_grad_(False)
    model.base_model.layers[-1].mlp.requires_grad_(True)
    share, *_ = token_loss(model, part, LOSS)
    share.backward()
    theirs = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    _, ours = added(model, part, LOSS, budget=1)
    assert relative_error(ours, theirs) < 1e-5


def test_a_branch_that_nobody_is_trained_on_is_not_computed(make_model):
    model = make_model()
    read = Row(tokens=(1, 2, 3, 4, 5), trained=(False, True, False, False, False), advantage=1.0)
    written = Row(tokens=(1, 2, 6, 7), trained=(False, True, True, True), advantage=1.0)
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.extend(args[0][0].tolist()))
    told = add_gradients(model, whole(collate([read, written])), LOSS, budget=3)
    assert seen == [1, 2, 6, 7]
    assert told.computed == 4


def test_the_only_array_as_large_as_the_vocabularys_weight_is_its_gradient(monkeypatch: pytest.MonkeyPatch):
    """Of 152,000 words it is the largest array of a small model; autograd would hold up to four of them."""
    monkeypatch.setattr("sleuth.kernels.vocabulary.COLUMNS", 1_000)  # fewer than words, as with a large vocabulary
    config = Qwen3Config(
        vocab_size=3_001, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    model, made = Qwen3ForCausalLM(config).eval(), list[int]()
    weight = model.lm_head.weight

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.numel() >= weight.numel():
                made.append(result.untyped_storage().data_ptr())
            return result

    with Made():
        add_gradients(model, whole(collate(searchers())), LOSS, budget=50)
    assert {*made} - {weight.untyped_storage().data_ptr()} == {weight.grad.untyped_storage().data_ptr()}


# -- boundaries --------------------------------------------------------------------------------------------------------


def test_two_backward_passes_across_a_boundary_give_the_gradient_of_one():
    weights = torch.tensor([2.0, 3.0], requires_grad=True)
    boundary = ActivationBoundary()
    boundary.keep("squares", weights.square())
    boundary.keep("unread", weights * 5)
    for factor in (1.0, 10.0):  # two branches, each backward by itself
        (boundary["squares"].sum() * factor).backward()
    assert weights.grad is None
    torch.autograd.backward(*boundary.outputs_and_grads())
    assert weights.grad.tolist() == [44.0, 66.0]


def test_an_output_computed_again_is_ignored():
    boundary, first = ActivationBoundary(), torch.ones(1, requires_grad=True) * 2
    boundary.keep("twice", first)
    leaf = boundary["twice"]
    boundary.keep("twice", torch.ones(1, requires_grad=True) * 2)
    assert boundary["twice"] is leaf
    leaf.sum().backward()
    [output], _ = boundary.outputs_and_grads()
    assert output is first


# -- chunks ------------------------------------------------------------------------------------------------------------


def tree_of(*rows: tuple[int, ...]):
    return prefix_tree(collate([Row(tokens=row, trained=(False, *[True] * (len(row) - 1))) for row in rows]))


def siblings(prompt: int, answers: int, length: int):
    """A group: numbers that nobody else has, one prompt."""
    shared = tuple(range(prompt))
    return [(*shared, *range(1_000 * (answer + 1), 1_000 * (answer + 1) + length)) for answer in range(answers)]


def cut(tree, budget: int) -> list[tuple[int, int, int]]:
    return [(chunk.first, chunk.stop, chunk.end) for chunk in subtree_chunks(tree.ends, budget)]


def test_a_tree_within_the_budget_is_one_limb():
    assert cut(tree_of(*siblings(10, 4, 5)), 30) == [(0, 30, 30)]


def test_branches_share_what_the_trunk_leaves_of_the_budget_evenly():
    tree = tree_of(*siblings(10, 4, 5))
    assert cut(tree, 29) == [(0, 10, 30), (10, 20, 20), (20, 30, 30)], "not 15 and 5"
    assert cut(tree, 20) == [(0, 10, 30), (10, 20, 20), (20, 30, 30)]
    assert cut(tree, 19) == cut(tree, 1) == [(0, 10, 30), *((at, at + 5, at + 5) for at in (10, 15, 20, 25))]


@given(draw=st.integers(0, 10**6).map(random.Random), budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_limbs_hold_each_token_once_and_no_path_of_them_is_over_the_budget(draw, budget):
    rows = group_rows(draw, groups=draw.randint(1, 3), siblings=draw.randint(1, 5), longest=draw.randint(1, 16))
    tree = prefix_tree(collate(rows))
    path: list[SubtreeChunk] = []
    at = 0
    for chunk in subtree_chunks(tree.ends, budget):
        assert (chunk.first, chunk.first < chunk.stop <= chunk.end) == (at, True)
        at = chunk.stop
        while path and path[-1].end <= chunk.first:
            path.pop()
        above = sum(trunk.stop - trunk.first for trunk in path)
        roots = [token for token in range(chunk.first, chunk.stop) if tree.parents[token] < chunk.first]
        assert {int(tree.parents[root]) for root in roots} == {path[-1].stop - 1 if path else -1}
        assert int(tree.positions[chunk.first]) == above
        is_one_path = len(roots) == 1 and int(tree.positions[chunk.stop - 1]) - above == chunk.stop - chunk.first - 1
        assert above + chunk.stop - chunk.first <= budget or is_one_path
        if chunk.stop < chunk.end:
            assert is_one_path
            path.append(chunk)
    assert at == len(tree)
