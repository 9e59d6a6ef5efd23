from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.comparisons import all_comparisons
from benchmarks.contest import TOLERANCE, table_row
from benchmarks.flops import update_flops
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


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_are_as_long_and_as_many_as_their_shape_says(shape):
    rows = draw_rows(shape)
    assert len(rows) == shape.rows == shape.prompts * shape.siblings
    assert {len(row.tokens) for row in rows} == {shape.length}
    assert {sum(row.trained) for row in rows} == {shape.query + shape.answer}
    assert all(row.advantage for row in rows)


def test_siblings_share_their_prompt_and_the_first_five_also_query_and_block():
    shape = SHAPES["multi_turn"]
    group = draw_rows(shape)[: shape.siblings]
    read = shape.prompt + shape.query + shape.block
    assert len({row.tokens[: shape.prompt] for row in group}) == 1
    assert [len({row.tokens[:read] for row in part}) for part in (group[:5], group[5:])] == [1, 3]
    assert len({row.tokens for row in group}) == shape.siblings


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


def test_operations_grow_with_the_square_of_a_lone_rows_length_by_attention_alone():
    short, long = (draw_rows(replace(SHAPES["search"], prompts=1, siblings=1, prompt=1, answer=n)) for n in (99, 199))
    pairs = [sum(range(1, 1 + len(rows[0].tokens))) for rows in (short, long)]
    attention = 3 * 4 * CONFIG.num_hidden_layers * CONFIG.num_attention_heads * CONFIG.head_dim
    rest = [update_flops(rows, CONFIG) - attention * seen for rows, seen in zip((short, long), pairs, strict=True)]
    head = 3 * 2 * CONFIG.hidden_size * CONFIG.vocab_size
    assert rest[1] + head == pytest.approx(2 * (rest[0] + head))


def test_the_ratio_is_that_of_the_medians_between_the_extremes_of_the_pairs():
    rows = {comparison.name: comparison for comparison in all_comparisons()}
    seconds = table_row(rows["update/refiner/trl"], [(1.0, 2.0), (2.0, 8.0), (4.0, 12.0)])
    speed = table_row(rows["sample/ragged/generate"], [(30.0, 10.0), (20.0, 10.0)])
    assert (seconds.ours, seconds.peer, seconds.ratio, seconds.low, seconds.high) == (2.0, 8.0, 4.0, 2.0, 4.0)
    assert (speed.ratio, speed.low, speed.high) == (2.5, 2.0, 3.0)
