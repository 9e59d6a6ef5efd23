"""Rows dealt over ranks: all of them, once, evenly, and equally many passes for everyone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from sleuth.learn.batch import Row, collate
from sleuth.learn.prefix_tree import pack, prefix_tree, shard_packs, shard_rows
from sleuth.ranks import Ranks
from sleuth.think.dpo import PAIR


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


def test_a_world_of_one_gets_the_packs_of_pack(make_rows):
    batch = collate(make_rows(9))
    assert [part.members for part in shard_packs(batch, 40, Ranks())] == [part.members for part in pack(batch, 40)]


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


def test_shares_of_any_count_are_contiguous_and_cover_it():
    for count in (0, 1, 5, 8, 17):
        for world in (1, 2, 3, 8):
            shares = [Ranks(rank=rank, world=world).share(count) for rank in range(world)]
            assert [shares[0].start, shares[-1].stop] == [0, count]
            assert all(a.stop == b.start for a, b in pairwise(shares))
            sizes = {share.stop - share.start for share in shares}
            assert max(sizes) - min(sizes) <= 1
