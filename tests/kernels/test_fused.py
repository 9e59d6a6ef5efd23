"""Fused functions, compiled for the CPU, which no run does, beside the paths that they replace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from sleuth.kernels import fused, vocabulary
from sleuth.kernels.fused import Fused
from sleuth.kernels.vocabulary import Chunking, logprobs_with_grad, target_logprobs, top_logprobs
from sleuth.learn.batch import collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.learn.prefix_tree import pack

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Tolerances, relative to the largest number: of bf16 two roundings of 0.4 % and what a sum of rounded ones adds."""


BY_DTYPE = pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
"""The updates below compute in fp32 too."""


@pytest.fixture
def on_card(monkeypatch) -> Iterator[None]:
    """All tensors count as those of a card; graphs of other tests are forgotten."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(fused._Switch, "on", True)
    for module in (fused, vocabulary):
        monkeypatch.setattr(module, "on_card", lambda *tensors: True)
    yield
    assert fused.is_on(), "a function was not compiled"


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def close(ours, expected, tolerance) -> None:
    assert ours.dtype == expected.dtype
    scale = expected.abs().max().item()
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * scale)


def outcome(function, inputs, *, seed=0):
    """The outputs of a function of tensors, and the gradients of those that need one."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(seed)
    arriving = [torch.randn(output.shape, generator=generator).to(output) for output in outputs]
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    return [*(output.detach() for output in outputs), *torch.autograd.grad(outputs, needed, arriving)]


def normal(*shape, dtype):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def gate(dtype):
    """A fused function, what it replaces, inputs for rows, and its graphs."""
    inputs = lambda rows: [normal(rows, 48, dtype=dtype), normal(rows, 48, dtype=dtype)]  # noqa: E731
    return fused._SwishProduct.apply, lambda gate, up: nn.functional.silu(gate) * up, inputs, 2


def joined_gate(dtype):
    inputs = lambda rows: [normal(rows, 96, dtype=dtype)]  # noqa: E731
    return fused.JoinedSwishProduct.apply, lambda both: nn.functional.silu(both[:, :48]) * both[:, 48:], inputs, 0


def norm(dtype):
    module = Qwen3RMSNorm(32).to(dtype)

    def theirs(rows, weight):
        return torch.func.functional_call(module, {"weight": weight}, (rows,))

    inputs = lambda rows: [normal(rows, 32, dtype=dtype), normal(32, dtype=dtype)]  # noqa: E731
    return lambda rows, weight: fused._Norm.apply(rows, weight, module.variance_epsilon), theirs, inputs, 2


def rotation(dtype, normed=False):
    norms = Qwen3RMSNorm(8).to(dtype), Qwen3RMSNorm(8).to(dtype)

    def theirs(query, key, cos, sin, *weights):
        if normed:
            query, key = (
                torch.func.functional_call(norm, {"weight": weight}, (heads,))
                for norm, weight, heads in zip(norms, weights, (query, key), strict=True)
            )
        turned = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos[None], sin[None])
        return tuple(heads[0].transpose(0, 1) for heads in turned)

    def ours(query, key, cos, sin, *weights):
        if normed:
            return fused._NormedRotation.apply(query, key, cos, sin, *weights, norms[0].variance_epsilon)
        return fused._Rotation.apply(query, key, cos, sin)

    def inputs(rows):
        angles = torch.randn(rows, 4).repeat(1, 2)
        heads = [normal(rows, 4, 8, dtype=dtype), normal(rows, 2, 8, dtype=dtype)]
        weights = [normal(8, dtype=dtype), normal(8, dtype=dtype)] if normed else []
        return [*heads, angles.cos().to(dtype), angles.sin().to(dtype), *weights]

    return ours, theirs, inputs, 2 if normed else 1  # without a norm the gradient is a rotation too


@BY_DTYPE
@pytest.mark.parametrize("make", [gate, joined_gate, norm, rotation, partial(rotation, normed=True)])
def test_a_fused_function_is_that_of_torch_with_one_graph_each_way(on_card, dtype, make) -> None:
    torch.manual_seed(0)
    ours, theirs, inputs, count = make(dtype)
    for rows in (5, 12, 64, 7):
        drawn = inputs(rows)
        for one, other in zip(outcome(ours, drawn), outcome(theirs, drawn), strict=True):
            close(one, other, DTYPES[dtype])
    assert graphs() == count


def head_of(dtype, width=16, words=301):
    torch.manual_seed(1)
    head = nn.Linear(width, words, bias=False, dtype=dtype)
    return head.requires_grad_()


@BY_DTYPE
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_softmax_is_the_same_with_two_graphs(monkeypatch, request, dtype, temperature) -> None:
    def outcomes():
        found = []
        for rows in (23, 16, 9, 17):  # 17: a chunk of one row, which is not fused
            torch.manual_seed(rows)
            hidden, targets = torch.randn(rows, 16, dtype=dtype), torch.randint(0, 301, (rows,))
            hidden *= 4
            chunking = Chunking(rows=8, sums_in_fp32=True)
            for loss in ("whole", "chunks", "also"):
                head, leaf = head_of(dtype), hidden.clone().requires_grad_()
                also = torch.randint(0, 301, (rows, 3)) if loss == "also" else None
                if loss == "whole":
                    logprobs, entropy = target_logprobs(head, leaf, targets, temperature, chunking=chunking)
                    share = (logprobs * torch.linspace(-1, 1, rows)).sum()
                else:
                    share, logprobs, entropy = logprobs_with_grad(
                        head, leaf, targets, temperature, _squares, also=also, chunking=chunking
                    )
                share.backward()
                found.append([logprobs.detach(), entropy.detach(), leaf.grad, head.weight.grad, share.detach()])
            found.append(
                [t for t in top_logprobs(head_of(dtype), hidden, targets, temperature, 2) if t.is_floating_point()]
            )
        return found

    expected = outcomes()
    request.getfixturevalue("on_card")
    for ours, theirs in zip(outcomes(), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one, other, 1e-5 if one.dtype == torch.float32 else 1e-2)
    assert graphs() == 2


def _squares(part, logprobs):
    """A loss of log-probabilities (n,) or (n, 1 + k), and its derivatives."""
    return logprobs.square().sum() / 2, logprobs


@pytest.mark.parametrize("family", [pytest.param("qwen3", marks=pytest.mark.slow), "qwen2", "llama"])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_the_gradient_of_an_update_is_the_same(make_model, make_rows, request, family, checkpointed) -> None:
    batch = collate(make_rows(9))

    def gradients():
        model = make_model(family)
        settings = Optimisation(steps=10, learning_rate=1e-3)
        policy = Policy(model, settings, gradient_checkpointing=checkpointed)
        return [policy.gradient(batch, PolicyLoss(), budget=budget) for budget in (60, 10**6)]

    expected = gradients()
    request.getfixturevalue("on_card")
    for (loss, gradient), (their_loss, theirs) in zip(gradients(), expected, strict=True):
        assert loss == pytest.approx(their_loss, rel=1e-4)
        close(gradient, theirs, 1e-4)
    assert 0 < graphs() <= 8


def test_a_bf16_gradient_is_no_further_from_fp32_than_that_of_torch(make_model, make_rows, request) -> None:
    batch = collate(make_rows(9))

    def gradient(dtype):
        policy = Policy(make_model().to(dtype), Optimisation(steps=10, learning_rate=1e-3))
        return policy.gradient(batch, PolicyLoss(), budget=10**6)[1]

    exact, theirs = gradient(torch.float32), gradient(torch.bfloat16)
    request.getfixturevalue("on_card")
    ours = gradient(torch.bfloat16)
    assert (ours - exact).norm() < 1.2 * (theirs - exact).norm()


@pytest.fixture
def no_compiler(on_card, monkeypatch) -> Iterator[None]:
    """Every compiled function fails at its first call."""

    def compiled(function, **options):
        def call(*arguments, **fixed):
            raise RuntimeError("no triton here\nand more")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    for function in (*vars(vocabulary).values(), *vars(fused).values()):
        if isinstance(function, Fused):
            monkeypatch.setattr(function, "_compiled", None)
    yield
    monkeypatch.setattr(fused._Switch, "on", True)


LINE = "fused functions are off, which makes updates slower: RuntimeError: no triton here\n"


def test_without_a_compiler_functions_run_as_written_after_one_line(no_compiler, capsys) -> None:
    twice = Fused(lambda rows: 2 * rows)
    for _ in range(2):
        assert torch.equal(twice(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert capsys.readouterr().err == LINE
    assert not fused.is_on()


@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_update_goes_on_without_a_compiler(make_model, make_rows, request, capsys, checkpointed) -> None:
    def gradient():
        settings = Optimisation(steps=10, learning_rate=1e-3)
        policy = Policy(make_model(), settings, gradient_checkpointing=checkpointed)
        return policy.gradient(collate(make_rows(9)), PolicyLoss(), budget=60)[1]

    expected = gradient()
    request.getfixturevalue("no_compiler")
    close(gradient(), expected, 1e-4)
    assert capsys.readouterr().err == LINE


def test_running_out_of_memory_does_not_switch_fusing_off(on_card, monkeypatch) -> None:
    def exhausted(rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(torch.OutOfMemoryError):
        Fused(exhausted)(torch.ones(3, 2))


def test_nothing_is_fused_on_a_cpu(make_model, make_rows, monkeypatch) -> None:
    monkeypatch.setattr(Fused, "__call__", refuse)
    [part] = pack(collate(make_rows()), 10**9)
    token_logprobs(make_model(), part)[0].sum().backward()


class Recorded(nn.Module):
    """A layer whose own forward returns the options that it was given."""

    def forward(self, hidden_states, **options):
        return options


@pytest.mark.parametrize("cache", [{}, {"past_key_values": None}, {"cache": None}])
def test_attention_on_a_cpu_gets_the_options_of_its_caller_and_no_other(cache) -> None:
    given = {"position_embeddings": (torch.ones(1), torch.ones(1)), "attention_mask": None, "branches": 3} | cache
    assert fused._attention_forward(Recorded(), torch.ones(1, 2, 4), **given) == given


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_attention_with_a_cache_is_not_fused(monkeypatch, name) -> None:
    monkeypatch.setattr(fused, "on_card", lambda *tensors: True)
    given = {"position_embeddings": (torch.ones(1), torch.ones(1)), "attention_mask": None, name: object()}
    assert fused._attention_forward(Recorded(), torch.ones(1, 2, 4), **given) == given


def test_switched_off_a_card_has_the_paths_of_before(make_model, make_rows, on_card, monkeypatch) -> None:
    monkeypatch.setattr(Fused, "__call__", refuse)
    fused.switch_off()
    [part] = pack(collate(make_rows()), 10**9)
    token_logprobs(make_model(), part)[0].sum().backward()
    monkeypatch.setattr(fused._Switch, "on", True)
    with pytest.raises(AssertionError, match="fused"):
        token_logprobs(make_model(), part)


def test_tensors_of_a_card_are_plain_ones() -> None:
    class OnCard(torch.Tensor):
        is_cuda = True

    assert not fused.on_card(torch.ones(3, 2))
    assert not fused.on_card(torch.ones(3, 2).as_subclass(OnCard))


def refuse(*arguments, **options):
    raise AssertionError("fused")
