from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from padded import group_rows, padded_logprobs, whole

from sleuth.learn.batch import Row, collate
from sleuth.learn.logprobs import token_logprobs
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.prefix_tree import pack, prefix_tree, shard_packs, shard_rows
from sleuth.ranks import Ranks
from sleuth.think.dpo import PAIR

draws = st.integers(0, 10**6).map(random.Random)


def plain(*tokens: int) -> Row:
    return Row(tokens=tokens, trained=(False, *[True] * (len(tokens) - 1)), advantage=1.0)


def some_rows(draw: random.Random) -> list[Row]:
    return group_rows(draw, groups=draw.randint(1, 3), siblings=draw.randint(1, 5), longest=draw.randint(1, 16))


# -- the tree --------------------------------------------------------------------------------------------------------


def test_siblings_share_the_tokens_of_their_common_path():
    tree = prefix_tree(collate([plain(7, 5, 9), plain(7, 5, 4), plain(7, 5)]))
    assert tree.tokens.tolist() == [7, 5, 4, 9]
    assert tree.positions.tolist() == [0, 1, 2, 2]
    assert tree.parents.tolist() == [-1, 0, 1, 1]
    assert tree.ends.tolist() == [4, 4, 3, 4]
    assert tree.nodes.tolist() == [[0, 1, 3], [0, 1, 2], [0, 1, 0]]


def test_the_same_token_after_another_path_is_not_shared():
    tree = prefix_tree(collate([plain(1, 2, 3), plain(4, 2, 3), plain(1, 3, 2)]))
    assert len(tree) == 8


@given(draw=draws)
@settings(max_examples=60, deadline=None)
def test_every_row_can_be_read_from_the_tree_and_no_prefix_is_stored_twice(draw):
    batch = collate(some_rows(draw))
    tree = prefix_tree(batch)
    for row, length in enumerate(batch.lengths.tolist()):
        path = tree.nodes[row, :length]
        assert torch.equal(tree.tokens[path], batch.tokens[row, :length])
        assert torch.equal(tree.positions[path], torch.arange(length))
        assert torch.equal(tree.parents[path[1:]], path[:-1])
        assert tree.parents[path[0]] == -1
    prefixes = {tuple(row[:end]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
                for end in range(1, n + 1)}  # fmt: skip
    assert len(tree) == len(prefixes)


@given(draw=draws)
@settings(max_examples=60, deadline=None)
def test_a_token_is_on_the_path_of_exactly_the_tokens_up_to_its_end(draw):
    tree = prefix_tree(collate(some_rows(draw)))
    for token in range(len(tree)):
        path, at = set(), token
        while at >= 0:
            path.add(at)
            at = int(tree.parents[at])
        assert path == {j for j in range(len(tree)) if j <= token < tree.ends[j]}


# -- packs -----------------------------------------------------------------------------------------------------------


@given(draw=draws, budget=st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_packs_fit_the_budget_and_lose_no_row(draw, budget):
    batch = collate(some_rows(draw))
    parts = pack(batch, budget)
    for part in parts:
        assert len(part.tree) <= budget or len(part.rows.lengths) == 1
    packed = sorted(tuple(row[:n]) for part in parts
                    for row, n in zip(part.rows.tokens.tolist(), part.rows.lengths.tolist(), strict=True))  # fmt: skip
    assert packed == sorted(
        tuple(row[:n]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    )
    assert sum(part.rows.weights.sum().item() for part in parts) == pytest.approx(1.0)


def test_a_group_over_the_budget_is_cut_between_its_branches():
    left, right = [plain(1, 2, 3, 4, n) for n in (5, 6)], [plain(1, 2, 8, 9, n) for n in (5, 6)]
    parts = pack(collate([left[0], right[0], left[1], right[1]]), 7)
    assert [len(part.tree) for part in parts] == [6, 6]
    assert [part.rows.tokens[:, 2].tolist() for part in parts] == [[3, 3], [8, 8]]


def brute_force(rows: list[tuple[int, ...]], budget: int) -> int:
    """The fewest tokens of any way to cut the ordered rows."""
    if not rows:
        return 0
    costs = []
    for stop in range(1, len(rows) + 1):
        tokens = len({row[:end] for row in rows[:stop] for end in range(1, len(row) + 1)})
        if stop == 1 or tokens <= budget:
            costs.append(tokens + brute_force(rows[stop:], budget))
    return min(costs)


@given(draw=draws, budget=st.integers(3, 30))
@settings(max_examples=30, deadline=None)
def test_no_cut_of_the_ordered_rows_computes_fewer_tokens(draw, budget):
    rows = [plain(*[draw.randrange(2) for _ in range(draw.randint(2, 9))]) for _ in range(draw.randint(1, 7))]
    computed = sum(len(part.tree) for part in pack(collate(rows), budget))
    assert computed == brute_force(sorted(row.tokens for row in rows), budget)


# -- gradients ------------------------------------------------------------------------------------------------------


def gradients(model, loss) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def relative_error(ours, theirs) -> float:
    difference = sum((a - b).square().sum() for a, b in zip(ours, theirs, strict=True)).sqrt()
    return float(difference / sum(b.square().sum() for b in theirs).sqrt())


LOSS = PolicyLoss(old_logprobs="sampler", clip_low=0.2, clip_high=0.28)


def test_a_token_that_two_rows_share_keeps_its_own_loss_in_each(make_model):
    """A clip is not linear: one row may be clipped where its twin is not, and weights are never added up on a node."""
    model = make_model()
    tokens, trained = (3, 4, 5), (False, True, True)
    rows = [
        Row(tokens=tokens, trained=trained, advantage=1.0, sampler_logprobs=(0.0, -9.0, -9.0)),  # clipped
        Row(tokens=tokens, trained=trained, advantage=-0.5, sampler_logprobs=(0.0, -9.0, -9.0)),  # not
    ]
    batch = collate(rows)
    assert len(prefix_tree(batch)) == 3
    both = gradients(model, LOSS(batch, token_logprobs(model, whole(batch))[0], None)[0])
    padded = gradients(model, LOSS(batch, padded_logprobs(model, batch), None)[0])
    assert relative_error(both, padded) <= 1e-5
    assert any(gradient.any() for gradient in padded)


# -- rows dealt over ranks ---------------------------------------------------------------------------------------------


def row(*tokens: int) -> Row:
    return Row(tokens=tokens, trained=(False,) + (True,) * (len(tokens) - 1), advantage=1.0)


def computed(batch, rows) -> int:
    return len(prefix_tree(batch.take(rows))) if rows else 0


@pytest.mark.parametrize("world", [2, 3, 8])
def test_every_row_goes_to_one_rank_and_keeps_its_weight(make_rows, world):
    batch = collate(make_rows(9), normalise="sequence")
    dealt = [shard_packs(batch, 40, Ranks(rank=rank, world=world)) for rank in range(world)]
    weights = [part.rows.weights[part.rows.weights > 0].sort().values for parts in dealt for part in parts]
    assert torch.equal(torch.cat(weights).sort().values, batch.weights[batch.weights > 0].sort().values)
    assert sum(len(part.members) for parts in dealt for part in parts) == 9


@pytest.mark.parametrize("world", [2, 3, 8])
def test_all_ranks_make_the_same_number_of_passes(make_rows, world):
    batch = collate(make_rows(9))
    assert len({len(shard_packs(batch, 20, Ranks(rank=rank, world=world))) for rank in range(world)}) == 1


def test_a_rank_without_rows_gets_a_filler_of_weight_zero():
    batch = collate([row(1, 2, 3, 4)])
    mine, *others = [shard_packs(batch, 40, Ranks(rank=rank, world=3)) for rank in range(3)]
    assert [part.members for part in mine] == [(0,)]
    for [part] in others:
        assert part.members == ()
        assert part.rows.tokens.tolist() == [[1, 2]]
        assert part.rows.trained.tolist() == [[False, True]], "a pass through all layers has a token to look at"
        assert not part.rows.weights.any()


def test_rows_with_a_common_prefix_stay_together():
    """By hand: two families of 6 + 2 x 2 = 10 distinct tokens. Cut between them each rank computes 10; cut within
    them, one family's beginning would be computed twice."""
    batch = collate([row(1, 1, 1, 1, 1, 1, n, n) for n in (4, 5)] + [row(2, 2, 2, 2, 2, 2, n, n) for n in (4, 5)])
    shares = shard_rows(batch, 2)
    assert [sorted(share) for share in shares] == [[0, 1], [2, 3]]
    assert [computed(batch, share) for share in shares] == [10, 10]


def test_no_other_cut_has_a_smaller_maximum_of_tokens_per_rank(make_rows):
    for seed in range(20):
        batch = collate(make_rows(9, seed))
        shares = shard_rows(batch, 2)
        order = [row for share in shares for row in share]
        cuts = [(order[:at], order[at:]) for at in range(len(order) + 1)]
        best = min(max(computed(batch, a), computed(batch, b)) for a, b in cuts)
        assert max(computed(batch, share) for share in shares) == best


def test_pairs_stay_on_one_rank(make_rows):
    batch = collate(make_rows(10), normalise="sequence")
    for world in (2, 3):
        for share in shard_rows(batch, world, together=PAIR):
            assert all(b == a + 1 for a, b in zip(share[::2], share[1::2], strict=True))
        parts = [
            part
            for rank in range(world)
            for part in shard_packs(batch, 40, Ranks(rank=rank, world=world), together=PAIR)
        ]
        assert all(len(part.rows.tokens) % PAIR == 0 for part in parts)
