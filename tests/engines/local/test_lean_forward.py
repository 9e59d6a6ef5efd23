"""The forward without modules: by plain torch beside transformers', and its kernels by Triton's interpreter."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from fake_card import (
    Launches,
    WithoutCard,
    ragged_engine,
    two_launches,
    use_kernel,
    use_prefill_kernel,
    use_sample_kernels,
)
from interpreted import interpreted
from playing import gather, require_logprobs
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM
from windowed_models import windowed_model

from sleuth.engines.local import engine as local_engine
from sleuth.engines.local.attention import Batch, Kernels
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.local.lean_forward import LeanForward, can_be_lean
from sleuth.engines.local.slots import PrefillChunk
from sleuth.engines.sampling import draw_rows
from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.types import Sampling

FAMILIES = ["qwen3", "qwen2", "llama"]


@pytest.fixture
def lean_engine(tokenizer, monkeypatch):
    """Opens an engine whose forward is lean on a CPU, where prompts are read in parts."""
    monkeypatch.setattr(LeanForward, "on_card", lambda model, log: LeanForward(model))
    monkeypatch.setattr(local_engine, "CPU_FORWARD_TOKENS", 16)

    def open_engine(model):
        assert can_be_lean(model)
        return LocalEngine(model, tokenizer, slots=4, context=128)

    return open_engine


def play(engine, prompts):
    """Two siblings of each prompt, with 20 more tokens each."""
    each = [(prompt, sibling) for prompt in prompts for sibling in range(2)]
    samplings = [Sampling(max_tokens=20, temperature=0.7 * (n % 3), key=(0, n)) for n in range(len(each))]
    return gather(*(engine.complete(*one) for one in zip([prompt for prompt, _ in each], samplings, strict=True)))


def assert_those_of_transformers(model, prompts, completions):
    for number, completion in enumerate(completions):
        require_logprobs(model, prompts[number // 2], completion, 0.7 * (number % 3))


@pytest.mark.parametrize("family", [*FAMILIES, "tied", "adapters", "qwen2 in windows"])
def test_its_logprobs_are_those_of_transformers(make_model, tokenizer, words, lean_engine, family):
    if family == "qwen2 in windows":
        model = windowed_model("qwen2", len(tokenizer))
    else:
        model = make_model("qwen3" if family in ("tied", "adapters") else family, tied=family == "tied")
    if family == "adapters":
        add_adapters(model, Adapters(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "up_proj", "down_proj")), seed=0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    prompts = [words(n, seed=n) for n in (3, 40, 50)]
    expected = copy.deepcopy(model)
    assert_those_of_transformers(expected, prompts, play(lean_engine(model), prompts))


def test_the_weights_stay_the_models_own(make_model, words, lean_engine, tmp_path):
    """A second engine shares them, they can be trained, an update shows, and a save has each by itself."""
    model = make_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    one, other = lean_engine(model), lean_engine(model)
    prompts = [words(9)]
    first = play(one, prompts)
    places = [weight.data_ptr() for weight in model.parameters()]
    assert play(other, prompts) == first
    for layer in model.model.layers:  # no second copy: what is multiplied at once is in one buffer
        attention, block = layer.self_attn, layer.mlp
        for parts in ((attention.q_proj, attention.k_proj, attention.v_proj), (block.gate_proj, block.up_proj)):
            assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    assert [weight.data_ptr() for weight in model.parameters()] == places
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    model(torch.tensor(prompts)).logits.sum().backward()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-1)
        model.model.layers[1].mlp.up_proj.weight.data = model.model.layers[1].mlp.up_proj.weight * 2  # put elsewhere
    one.publish(1)
    assert_those_of_transformers(model, prompts, play(one, prompts))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in loaded.state_dict().items())


def test_a_model_with_something_of_its_own_is_not_lean(make_model):
    model = make_model()
    assert can_be_lean(model)

    class Other(torch.nn.Linear):
        pass

    model.model.layers[1].mlp.up_proj = Other(64, 96, bias=False)
    assert not can_be_lean(model)
    assert not can_be_lean(windowed_model("gemma3", 300))
    assert not can_be_lean(make_model("qwen3").bfloat16().requires_grad_(False).model.layers[0].mlp)


class Counted:
    """`lean_layers` as single launches."""

    @staticmethod
    def add_norm(hidden, update, weight, epsilon):
        return hidden.neg()

    @staticmethod
    def swish_product(gate_up):
        return gate_up.chunk(2, dim=-1)[0].neg()

    @staticmethod
    def rotate_and_write(product, cos, sin, norms, epsilon, pages, positions, keys, values):
        return product.view(len(product), -1, keys.shape[-1])[:, : -2 * len(keys)].neg()


def launches_of_a_step(tokenizer, layers, kernels, *, lean, mixed=False):
    """Counted with fake tensors, where each of our kernels is one launch, but for the two that attend while decoding.
    A step of the modules samples its tokens too."""
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), WithoutCard():
        patch.setattr(LeanForward, "on_card", lambda model, log: LeanForward(model, Counted) if lean else None)
        with Launches() as launches:
            engine = ragged_engine(tokenizer, layers)
            decoding, chunks = engine._schedule() or pytest.fail("nothing to compute")
            assert len(decoding) == 256
            if mixed:  # the last request reads its prompt
                chunks = [PrefillChunk(slot=255, start=0, stop=int(engine._table.length[255]))]
                decoding = decoding[:-1]
            where = {"device": engine.model.device, "dtype": engine.model.dtype, "kernels": kernels}
            batch = Batch(engine._table, decoding, chunks, engine._cache, **where)
            with engine._inference_mode():
                forward = engine._lean or (lambda batch: engine._forward(batch, np.arange(256)))
                if lean:
                    forward(batch)  # allocates the cache, moves the weights
                launches.count = 0
                logits = forward(batch)
                assert logits.shape == (256, 151_936)
                if not lean:
                    draw_rows(logits, *torch.zeros(2, 256, dtype=torch.float64, device="cuda"))
            return launches.count


@pytest.mark.parametrize(("mixed", "most"), [(False, 10), (True, 11)], ids=["decoding", "mixed"])
def test_a_step_takes_few_launches_a_layer(tokenizer, monkeypatch, mixed, most):
    """In the last layer only the last tokens of prompts go on."""
    use_kernel(monkeypatch, two_launches)
    use_prefill_kernel(monkeypatch)
    how = {"kernels": Kernels(decoding=True, prefilling=True), "lean": True, "mixed": mixed}
    one, three = (launches_of_a_step(tokenizer, layers, **how) for layers in (1, 3))
    assert (three - one) // 2 == most


@pytest.mark.parametrize(("kernel", "most"), [(True, 1_000), (False, 1_600)])
def test_a_ragged_decode_step_of_the_modules_of_a_0_6b_takes_few_launches(tokenizer, monkeypatch, kernel, most):
    use_kernel(monkeypatch, two_launches)
    use_sample_kernels(monkeypatch, None if kernel else "sampled in torch")
    how = {"kernels": Kernels(decoding=kernel), "lean": False}
    one, three = (launches_of_a_step(tokenizer, layers, **how) for layers in (1, 3))
    assert one + 27 * ((three - one) // 2) <= most


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


SHAPES = {
    "qwen3": {"heads": 4, "kv_heads": 2, "size": 32, "width": 48, "normed": True},
    "llama": {"heads": 3, "kv_heads": 3, "size": 24, "width": 80, "normed": False},
    "half precision": {"heads": 16, "kv_heads": 8, "size": 16, "width": 1100, "normed": True, "dtype": "float16"},
}
KERNELS = """
import json, sys
import torch
from sleuth.kernels import layer_kernels, lean_layers

def error(heads, kv_heads, size, width, normed, dtype="float32"):
    def computed(kernels):
        generator = torch.Generator().manual_seed(0)
        drawn = lambda *shape: torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        hidden, keys, values = drawn(7, width), drawn(kv_heads, 3, 16, size), drawn(kv_heads, 3, 16, size)
        after = kernels.add_norm(hidden, drawn(7, width), drawn(width), 1e-6)
        alone = kernels.add_norm(hidden, None, drawn(width), 1e-3)
        product, gates = drawn(7, (heads + 2 * kv_heads) * size), drawn(7, 2 * width)
        norms = (drawn(size), drawn(size)) if normed else None
        cos, sin = (drawn(7, size // 2).repeat(1, 2) for _ in range(2))
        where = torch.tensor([[0, 2, 1, 1, 0, 2, 2], [15, 16, 37, 36, 0, 1, 2]])
        query = kernels.rotate_and_write(product, cos, sin, norms, 1e-6, *where, keys, values)
        of_gates = kernels.swish_product_grads(gates, drawn(7, width))
        return [hidden, after, alone, kernels.swish_product(gates), of_gates, query, keys, values]
    pairs = zip(computed(layer_kernels), computed(lean_layers), strict=True)
    return max(float((ours.double() - plain.double()).norm() / plain.double().norm()) for ours, plain in pairs)

print(json.dumps({name: error(**shape) for name, shape in json.loads(sys.argv[1]).items()}))
"""


def test_its_kernels_compute_what_plain_torch_does():
    """fp32 sums in another order, and fp16 rounded to 3 digits."""
    errors = interpreted(KERNELS, SHAPES)
    assert max(errors["qwen3"], errors["llama"]) < 1e-6
    assert errors["half precision"] < 1e-3
