"""Models that are computed the plain way: the learner beside transformers' own forward, row by row."""

from __future__ import annotations

import random

import pytest
import torch
from padded import gradients, group_rows, relative_error, whole
from plain_models import FAMILIES, plain_model
from tiny_models import SHAPE, VOCABULARY
from transformers import LlamaConfig, MambaConfig, MegatronBertConfig, Qwen3Config, Qwen3ForCausalLM

from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.learn.batch import collate
from sleuth.learn.logprobs import is_plain, row_logprobs, token_hits, token_logprobs, token_top_logprobs
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.models import check_family, family_problem, plain_line, plain_reason
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.learn.prefix_tree import padded_packs
from sleuth.types import SleuthError


def some_rows(seed=0, longest=40):
    return group_rows(random.Random(seed), groups=2, siblings=4, longest=longest)


def logits_alone(model, batch):
    """(R, T, V): each row by itself, without padding."""
    logits = torch.zeros(*batch.tokens.shape, VOCABULARY)
    for row, length in enumerate(batch.lengths.tolist()):
        logits[row, :length] = model(batch.tokens[row : row + 1, :length]).logits[0]
    return logits


def logprobs_alone(model, batch, temperature=1.0):
    """(R, T): 0 where a token is not trained."""
    distribution = (logits_alone(model, batch) / temperature).log_softmax(dim=-1)
    chosen = distribution[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(chosen, (1, 0)) * batch.trained


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_are_those_of_each_row_alone(family):
    model, batch = plain_model(family, VOCABULARY), collate(some_rows())
    assert is_plain(model)
    ours, theirs = token_logprobs(model, whole(batch), temperature=0.7)[0], logprobs_alone(model, batch, 0.7)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    both = [gradients(model, (values * batch.trained).square().sum()) for values in (ours, theirs)]
    assert relative_error(*both) <= 1e-4
    assert row_logprobs(model, some_rows(), budget=60)[0] == pytest.approx(
        logprobs_alone(model, batch)[0, : batch.lengths[0]].tolist(), abs=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_what_makes_a_family_plain_matters_to_its_losses(family):
    """Else the tests would pass without it."""
    changed = {
        "lfm2": {"layer_types": ["full_attention"] * 3},
        "qwen3_next": {"layer_types": ["full_attention"] * 3},
        "qwen3_5": {"layer_types": ["full_attention"] * 3},
        "granite_hybrid": {"logits_scaling": 1.0},
        "gemma2": {"attn_logit_softcapping": None},
        "gpt_oss": {},
    }
    batch = collate(some_rows())
    model, other = plain_model(family, VOCABULARY), plain_model(family, VOCABULARY, **changed[family])
    for name, weight in other.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.constant_(weight, -100.0)
    before, after = (token_logprobs(one, whole(batch))[0] for one in (model, other))
    assert (before - after).abs().max() > 0.01


def test_the_likeliest_tokens_are_those_of_each_row_alone():
    model, batch = plain_model("gemma2", VOCABULARY), collate(some_rows())
    predicted = logits_alone(model, batch)[:, :-1]
    hits = token_hits(model, whole(batch))[:, 1:]
    assert torch.equal(hits, (predicted.argmax(-1) == batch.tokens[:, 1:]) & batch.trained[:, 1:])
    _, tokens, logprobs = token_top_logprobs(model, whole(batch), 3)
    expected = predicted.log_softmax(-1).topk(3)
    trained = batch.trained[:, 1:]
    assert torch.equal(tokens[:, 1:][trained], expected.indices[trained])
    torch.testing.assert_close(logprobs[:, 1:][trained], expected.values[trained], rtol=0, atol=1e-4)


def both_ways():
    """A Qwen3 that prefix trees compute, and one of the same weights whose config names a soft cap, which its own
    forward does not have."""
    torch.manual_seed(0)
    packed = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True)).eval()
    plain = frozen_copy(packed).requires_grad_()
    plain.config.attn_logit_softcapping = 50.0
    assert is_plain(plain)
    assert not is_plain(packed)
    return packed, plain


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", [{}, {"ratio": "sequence"}, {"beta": 0.1, "kl": "kl3"}], ids=["token", "gspo", "kl"])
def test_updates_are_those_of_prefix_trees(seed, loss):
    draw = random.Random(f"plain {seed}")
    batch = collate(group_rows(draw, groups=3, siblings=4, longest=20))
    figures = []
    for model in both_ways():
        reference = frozen_copy(model)
        policy = Policy(model, Optimisation(steps=10, learning_rate=0.01), reference)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.1)  # away from the reference
        _, gradient = policy.gradient(batch, PolicyLoss(**loss), budget=50)
        update = policy.update(batch, PolicyLoss(**loss), budget=50)
        figures.append((gradient, update))
    (packed_gradient, packed), (plain_gradient, plain) = figures
    assert (packed_gradient - plain_gradient).norm() <= 1e-4 * packed_gradient.norm()
    for name in ("loss", "entropy", "kl", "sampler_learner_kl", "gradient_norm"):
        assert getattr(plain, name) == pytest.approx(getattr(packed, name), rel=1e-4, abs=1e-4)
    assert plain.tokens_computed > packed.tokens_computed  # nothing is shared


def test_a_pass_of_the_plain_way_keeps_to_its_budget_with_the_padding():
    batch = collate(some_rows(3, longest=60))
    packs = padded_packs(batch, 120)
    assert sorted(row for pack in packs for row in pack.members) == list(range(len(batch.lengths)))
    assert all(pack.rows.tokens.numel() <= 120 or len(pack.members) == 1 for pack in packs)
    assert sum(len(pack.tree) for pack in packs) == batch.tokens_dense
    pairs = padded_packs(collate([*some_rows(3), *some_rows(3)]), 120, together=2)
    assert all(pack.members[at + 1] == pack.members[at] + 1 for pack in pairs for at in range(0, len(pack.members), 2))


def test_gradients_do_not_change_where_activations_are_computed_again():
    batch = collate(some_rows())
    kept, again = (
        Policy(
            plain_model("lfm2", VOCABULARY),
            Optimisation(steps=10, learning_rate=0.01),
            gradient_checkpointing=checkpointing,
        ).gradient(batch, PolicyLoss(), budget=100)[1]
        for checkpointing in (False, True)
    )
    torch.testing.assert_close(kept, again, rtol=1e-5, atol=1e-7)


def test_adapters_alone_are_trained():
    pytest.importorskip("peft")
    model = plain_model("gemma2", VOCABULARY)
    add_adapters(model, Adapters(rank=2, alpha=4.0, targets=("q_proj", "down_proj")), seed=0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    update = Policy(model, Optimisation(steps=10, learning_rate=0.01)).update(
        collate(some_rows()), PolicyLoss(), budget=100
    )
    moved = {name for name, weight in model.named_parameters() if not weight.equal(before[name])}
    assert update.changed_weights_fraction > 0
    assert moved
    assert all(".lora_" in name for name in moved)


def test_which_way_a_model_takes_is_one_line_from_its_config():
    assert plain_line(both_ways()[0].config) is None
    assert plain_reason(LlamaConfig(**SHAPE)) is None
    line = plain_line(plain_model("gpt_oss", VOCABULARY).config)
    assert line is not None
    assert "times slower" in line
    assert line.endswith("its attention has sinks")


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (MambaConfig(), "MambaForCausalLM .* its forward takes no past_key_values"),
        (MegatronBertConfig(), "is_decoder = false of its config: its tokens see later ones; what works: Qwen 2"),
    ],
)
def test_a_model_that_neither_way_computes_is_refused_in_a_line(config, line):
    assert family_problem(config)
    with pytest.raises(SleuthError, match=line):
        check_family(config)
