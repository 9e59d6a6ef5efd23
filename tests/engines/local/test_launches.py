"""Kernel launches of a decode step on a card, counted with fake tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_card import Launches, WithoutCard, ragged_engine, two_launches, use_kernel, use_sample_kernels
from torch._subclasses.fake_tensor import FakeTensorMode

from sleuth.engines.local import engine as local_engine
from sleuth.engines.local.attention import Batch, Kernels
from sleuth.engines.sampling import draw_rows

LAYERS = 28


def launches_of_a_step(tokenizer, layers: int, *, kernel: bool) -> int:
    with FakeTensorMode(allow_non_fake_inputs=True), Launches() as launches, WithoutCard():
        engine = ragged_engine(tokenizer, layers)
        decoding, chunks = engine._schedule()
        assert len(decoding) == 256
        launches.count = 0
        with engine._inference_mode():
            model = engine.model
            where = {"device": model.device, "dtype": model.dtype}
            batch = Batch(engine._table, decoding, chunks, engine._cache, kernels=Kernels(decoding=kernel), **where)
            logits = engine._forward(batch, np.arange(256))
            assert logits.shape == (256, 151_936)
            draws = torch.zeros(2, 256, dtype=torch.float64, device="cuda")
            draw_rows(logits, *draws)
        return launches.count


@pytest.mark.parametrize(("kernel", "most"), [(True, 1_000), (False, 1_600)])
def test_a_ragged_decode_step_of_a_0_6b_takes_few_kernel_launches(tokenizer, monkeypatch, kernel, most):
    use_kernel(monkeypatch, two_launches)
    use_sample_kernels(monkeypatch, None if kernel else "sampled in torch")
    one, three = (launches_of_a_step(tokenizer, layers, kernel=kernel) for layers in (1, 3))
    a_layer = (three - one) // 2
    total = one + (LAYERS - 1) * a_layer
    print(f"{total} launches, {a_layer} a layer")
    assert total <= most


def test_a_card_without_our_kernels_samples_in_torch_and_says_so_in_a_line(tokenizer, monkeypatch):
    lines: list[str] = []
    for name, problem in (("decode", None), ("prefill", None), ("sampling", "No module named 'triton'")):
        monkeypatch.setattr(local_engine, f"{name}_problem", lambda *asked, problem=problem: problem)
    with FakeTensorMode(allow_non_fake_inputs=True), WithoutCard():
        engine = ragged_engine(tokenizer, 1)
        engine._log = lines.append
        assert [engine._kernels for _ in range(2)] == [Kernels(decoding=True, prefilling=True)] * 2
    told = "the engine samples by forty launches a step, which is slow, as the kernel for it does not work here: "
    assert lines == [told + "No module named 'triton'"]
