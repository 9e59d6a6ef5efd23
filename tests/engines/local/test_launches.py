"""Kernel launches of a decode step on a card, counted with fake tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_card import Launches, WithoutCard, ragged_engine, two_launches, use_kernel
from torch._subclasses.fake_tensor import FakeTensorMode

from sleuth.engines.local.attention import Batch, Kernels
from sleuth.engines.sampling import sample_rows

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
            sample_rows(logits.float(), *draws)
        return launches.count


@pytest.mark.parametrize(("kernel", "most"), [(True, 1_000), (False, 1_600)])
def test_a_ragged_decode_step_of_a_0_6b_takes_few_kernel_launches(tokenizer, monkeypatch, kernel, most):
    use_kernel(monkeypatch, two_launches)
    one, three = (launches_of_a_step(tokenizer, layers, kernel=kernel) for layers in (1, 3))
    a_layer = (three - one) // 2
    total = one + (LAYERS - 1) * a_layer
    print(f"{total} launches, {a_layer} a layer")
    assert total <= most
