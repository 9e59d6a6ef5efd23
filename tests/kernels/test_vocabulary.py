from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sleuth.kernels import vocabulary
from sleuth.kernels.vocabulary import Chunking, chunking_for, embedding_in_place, logprobs_with_grad, target_logprobs


def drawn(rows: int = 23, words: int = 40, bias: bool = False, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    head = nn.Linear(16, words, bias=bias, dtype=dtype)
    return head, torch.randn(rows, 16, dtype=dtype, requires_grad=True), torch.randint(words, (rows,))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_chunks_give_the_values_and_gradients_of_the_whole_softmax(temperature, bias, rows_at_once):
    head, hidden, targets = drawn(bias=bias)
    distribution = (head(hidden) / temperature).log_softmax(dim=-1)
    plain = distribution[torch.arange(len(targets)), targets]
    chunking = Chunking(rows=rows_at_once, sums_in_fp32=False)
    ours, entropy = target_logprobs(head, hidden, targets, temperature, chunking=chunking)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, -(distribution.exp() * distribution).sum(-1).detach(), rtol=0, atol=1e-12)
    assert not entropy.requires_grad
    arrived, inputs = torch.randn(len(targets), dtype=torch.float64), [hidden, *head.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(ours, inputs, arrived), torch.autograd.grad(plain, inputs, arrived), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_a_loss_computed_in_chunks_has_the_value_and_gradients_of_the_whole(temperature, bias, rows_at_once):
    """Here one that is not linear: each row's gradient depends on its own log-probability."""
    head, hidden, targets = drawn(bias=bias)
    weights = torch.randn(len(targets), dtype=torch.float64)

    def logprob_grad(part, values):
        return (weights[part] * values.square()).sum(), 2 * weights[part] * values

    distribution = (head(hidden) / temperature).log_softmax(dim=-1)
    plain = distribution[torch.arange(len(targets)), targets]
    chunking = Chunking(rows=rows_at_once, sums_in_fp32=False)
    share, logprobs, entropy = logprobs_with_grad(head, hidden, targets, temperature, logprob_grad, chunking=chunking)
    torch.testing.assert_close(share, (weights * plain.square()).sum(), rtol=0, atol=1e-12)
    torch.testing.assert_close(logprobs, plain.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, -(distribution.exp() * distribution).sum(-1).detach(), rtol=0, atol=1e-12)
    assert not logprobs.requires_grad
    inputs = [hidden, *head.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(3 * share, inputs),
        torch.autograd.grad(3 * (weights * plain.square()).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


class LargestResult(TorchDispatchMode):
    """The most elements that any operation's result has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize(("device", "rows"), [("cpu", 8_192), ("cuda", 65_536)])
def test_the_logits_of_a_large_vocabulary_are_never_all_in_memory(device, rows):
    """151,936 words and 8,192 rows would be 5 GB of logits; two buffers of 128 rows are 1/32 of that. On a card they
    have 2,048 rows."""
    words = 151_936
    chunking = chunking_for(torch.device(device), words)
    head = nn.Linear(2, words, bias=False, device="meta")
    hidden, targets = (
        torch.zeros(rows, 2, device="meta", requires_grad=True),
        torch.zeros(rows, dtype=torch.long, device="meta"),
    )
    with LargestResult() as forward:
        logprobs, _ = target_logprobs(head, hidden, targets, 1.0, chunking=chunking)
        logprobs.sum().backward()
    assert forward.elements * 2 * 16 <= rows * words
    with LargestResult() as both:
        share, *_ = logprobs_with_grad(
            head, hidden, targets, 1.0, lambda part, values: (values.sum(), values), chunking=chunking
        )
        share.backward()
    assert both.elements * 2 * 16 <= rows * words


def test_nothing_as_wide_as_the_vocabulary_is_kept_for_the_backward_pass():
    head, hidden, targets = drawn(rows=100, words=300)
    kept: list[int] = []

    def remember(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        target_logprobs(head, hidden, targets, 1.0)
    assert max(kept) == head.weight.numel() < 100 * 300


@pytest.mark.parametrize("words", [5, 2_048, 5_000])
@pytest.mark.parametrize("least", [0, 2**30], ids=["shared", "alone"])
def test_the_compiled_loops_of_fp32_give_what_fp64_gives(monkeypatch, words, least):
    monkeypatch.setattr(vocabulary, "MIN_PARALLEL_SIZE", least)
    head, hidden, targets = drawn(words=words)
    fp32 = nn.Linear(16, words, bias=False)
    fp32.weight.data = head.weight.detach().float() * 20  # sharp distributions and flat ones
    head.weight.data *= 20
    inputs = hidden.detach().float().requires_grad_()
    expected, entropy = target_logprobs(head, hidden, targets, 1.0)
    ours, our_entropy = target_logprobs(fp32, inputs, targets, 1.0)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_entropy.double(), entropy, rtol=1e-4, atol=1e-5)
    expected.sum().backward()
    ours.sum().backward()
    for mine, theirs in ((inputs.grad, hidden.grad), (fp32.weight.grad, head.weight.grad)):
        assert (mine.double() - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_logit_that_is_not_finite_shows_in_the_values_of_its_row(value):
    head, hidden, targets = drawn(words=300, dtype=torch.float32)
    with torch.no_grad():
        head.weight[257] = value  # nobody's target
        targets = targets.where(targets != 257, 0)
        logprobs, entropy = target_logprobs(head, hidden.abs(), targets, 1.0)
    assert logprobs.isnan().all()
    assert entropy.isnan().all()


@pytest.mark.parametrize("bias", [False, True])
def test_in_place_the_gradient_of_the_head_is_added_to_the_existing_one(bias):
    found = []
    for in_place in (False, True):
        head, hidden, targets = drawn(bias=bias)
        for weight in head.parameters():
            weight.grad = torch.ones_like(weight)
        there = head.weight.grad
        share, *_ = logprobs_with_grad(
            head, hidden, targets, 0.7, lambda part, values: (values.sum(), torch.ones_like(values)), in_place=in_place
        )
        share.backward()
        assert head.weight.grad is there
        found.append([hidden.grad, *(weight.grad for weight in head.parameters())])
    for plain, in_place in zip(*found, strict=True):
        torch.testing.assert_close(in_place, plain, rtol=0, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_its_inputs_do():
    head, hidden, targets = drawn()
    head.requires_grad_(False)
    share, *_ = logprobs_with_grad(
        head, hidden, targets, 1.0, lambda part, values: (values.sum(), torch.ones_like(values)), in_place=True
    )
    share.backward()
    assert head.weight.grad is None
    again = hidden.detach().requires_grad_()
    logprobs = head(again).log_softmax(dim=-1)[torch.arange(len(targets)), targets]
    logprobs.sum().backward()
    torch.testing.assert_close(hidden.grad, again.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("padding", [None, 3])
def test_an_embedding_in_place_gets_the_gradient_of_autograd(make_model, padding):
    model = make_model()
    layer = model.get_input_embeddings()
    layer.padding_idx = padding
    tokens, arrived = torch.tensor([[3, 5, 5, 7]]), torch.randn(1, 4, layer.embedding_dim)
    layer(tokens).backward(arrived)
    layer(tokens).backward(arrived)
    expected, layer.weight.grad = layer.weight.grad, None
    with embedding_in_place(model):
        layer(tokens).backward(arrived)
        there = layer.weight.grad
        layer(tokens).backward(arrived)
    assert layer.weight.grad is there
    torch.testing.assert_close(there, expected)
    assert "forward" not in layer.__dict__


def head_grad(dtype: torch.dtype, chunking: Chunking | None = None) -> torch.Tensor:
    """The gradient of a head of 1,024 words from 16,384 rows; weights and rows are those of bf16 in any dtype."""
    torch.manual_seed(0)
    head = nn.Linear(32, 1_024, bias=False, dtype=torch.bfloat16)
    hidden, targets = torch.randn(16_384, 32, dtype=torch.bfloat16), torch.randint(1_024, (16_384,))
    head = head.to(dtype)
    share, *_ = logprobs_with_grad(
        head, hidden.to(dtype), targets, 1.0, lambda part, values: (values.sum(), torch.ones_like(values)),
        chunking=chunking,
    )  # fmt: skip
    share.backward()
    assert head.weight.grad.dtype == dtype
    return head.weight.grad.double()


def test_summed_in_fp32_the_gradient_of_a_bfloat16_head_is_as_exact_as_one_product():
    """What a card does, on CPU tensors: 16,384 rows in chunks of 2,048; and for comparison in the chunks of a CPU."""
    exact = head_grad(torch.float64)

    def error(chunking: Chunking) -> float:
        return float((head_grad(torch.bfloat16, chunking) - exact).norm() / exact.norm())

    of_card = error(chunking_for(torch.device("cuda"), 1_024))
    assert of_card < 0.002
    assert of_card < 1.01 * error(Chunking(rows=16_384, sums_in_fp32=False))
    assert error(Chunking(rows=128, sums_in_fp32=False)) > 5 * of_card, "or the sum in fp32 is of no use"


def test_a_16_bit_chunk_is_converted_in_pieces_to_the_same_values_and_gradients(monkeypatch):
    found = []
    for pieces in (1, 6):
        monkeypatch.setattr(vocabulary, "PIECE_LOGITS", 300 * 23 // pieces)
        head, hidden, targets = drawn(words=300, dtype=torch.bfloat16)
        chunking = Chunking(rows=1_000, sums_in_fp32=True)
        logprobs, entropy = target_logprobs(head, hidden, targets, 0.7, chunking=chunking)
        logprobs.sum().backward()
        found.append((logprobs.detach(), entropy, hidden.grad, head.weight.grad))
    for whole, in_pieces in zip(*found, strict=True):
        assert torch.equal(in_pieces, whole)
