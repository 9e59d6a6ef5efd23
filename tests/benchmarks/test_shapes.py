from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.comparisons import all_comparisons
from benchmarks.contest import TOLERANCE, table_row
from benchmarks.ours import Ours
from benchmarks.padded_peer import Padded
from benchmarks.shapes import SHAPES, distinct_positions, draw_rows, scored_tokens
from benchmarks.sides import Terms, relative_error

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
CONFIG = Qwen3Config(**SIZES, **HEADS, initializer_range=0.2, tie_word_embeddings=True)


@pytest.fixture
def terms(tmp_path):
    torch.manual_seed(0)
    Qwen3ForCausalLM(CONFIG).save_pretrained(tmp_path)
    return Terms(model=tmp_path, setting=3, rows=64, siblings=8)


@pytest.mark.parametrize(
    ("name", "distinct", "scored"),
    [
        ("search", 8 * (200 + 8 * 256), 64 * 256),
        ("refiner", 2 * (1_536 + 8 * 256), 16 * 256),
        ("multi_turn", 8 * (200 + 4 * 424 + 8 * 40), 8 * (4 * 24 + 8 * 40)),
        ("large_vocab", 2 * (200 + 8 * 128), 16 * 128),
    ],
)
def test_each_distinct_prefix_is_counted_once(name, distinct, scored):
    rows = draw_rows(SHAPES[name])
    assert (len(distinct_positions(rows)), scored_tokens(rows)) == (distinct, scored)


@pytest.mark.parametrize("name", ["refiner", "multi_turn"])
def test_the_padded_peer_has_our_gradient_and_another_loss_another(name, terms):
    rows = draw_rows(replace(SHAPES[name].miniature(), vocabulary=CONFIG.vocab_size))
    flipped = [replace(row, advantage=-row.advantage) for row in rows]
    ours = Ours(replace(terms, setting=40)).gradients(rows)
    assert relative_error(ours, Padded(terms).gradients(rows)) < TOLERANCE
    assert relative_error(ours, Padded(terms).gradients(flipped)) == pytest.approx(2.0)


def test_the_ratio_is_that_of_the_medians_between_the_extremes_of_the_pairs():
    rows = {comparison.name: comparison for comparison in all_comparisons()}
    seconds = table_row(rows["update/refiner/trl"], [(1.0, 2.0), (2.0, 8.0), (4.0, 12.0)])
    speed = table_row(rows["sample/ragged/generate"], [(30.0, 10.0), (20.0, 10.0)])
    assert (seconds.ours, seconds.peer, seconds.ratio, seconds.low, seconds.high) == (2.0, 8.0, 4.0, 2.0, 4.0)
    assert (speed.ratio, speed.low, speed.high) == (2.5, 2.0, 3.0)
