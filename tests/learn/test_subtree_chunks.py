from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from padded import group_rows

from sleuth.learn.batch import Row, collate
from sleuth.learn.chunked_loss import SubtreeChunk, subtree_chunks
from sleuth.learn.prefix_tree import prefix_tree


def tree_of(*rows: tuple[int, ...]):
    return prefix_tree(collate([Row(tokens=row, trained=(False, *[True] * (len(row) - 1))) for row in rows]))


def siblings(prompt: int, answers: int, length: int):
    """A group: numbers that nobody else has, one prompt."""
    shared = tuple(range(prompt))
    return [(*shared, *range(1_000 * (answer + 1), 1_000 * (answer + 1) + length)) for answer in range(answers)]


def cut(tree, budget: int) -> list[tuple[int, int, int]]:
    return [(chunk.first, chunk.stop, chunk.end) for chunk in subtree_chunks(tree.ends, budget)]


def test_a_tree_within_the_budget_is_one_limb():
    assert cut(tree_of(*siblings(10, 4, 5)), 30) == [(0, 30, 30)]


def test_branches_share_what_the_trunk_leaves_of_the_budget_evenly():
    tree = tree_of(*siblings(10, 4, 5))
    assert cut(tree, 29) == [(0, 10, 30), (10, 20, 20), (20, 30, 30)], "not 15 and 5"
    assert cut(tree, 20) == [(0, 10, 30), (10, 20, 20), (20, 30, 30)]
    assert cut(tree, 19) == cut(tree, 1) == [(0, 10, 30), *((at, at + 5, at + 5) for at in (10, 15, 20, 25))]


def test_trunks_grow_out_of_trunks():
    tree = tree_of((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 6, 7), (1, 2, 6, 8))
    assert cut(tree, 4) == [(0, 2, 8), (2, 3, 5), (3, 4, 4), (4, 5, 5), (5, 6, 8), (6, 7, 7), (7, 8, 8)]


@given(draw=st.integers(0, 10**6).map(random.Random), budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_limbs_hold_each_token_once_and_no_path_of_them_is_over_the_budget(draw, budget):
    rows = group_rows(draw, groups=draw.randint(1, 3), siblings=draw.randint(1, 5), longest=draw.randint(1, 16))
    tree = prefix_tree(collate(rows))
    path: list[SubtreeChunk] = []
    at = 0
    for chunk in subtree_chunks(tree.ends, budget):
        assert (chunk.first, chunk.first < chunk.stop <= chunk.end) == (at, True)
        at = chunk.stop
        while path and path[-1].end <= chunk.first:
            path.pop()
        above = sum(trunk.stop - trunk.first for trunk in path)
        roots = [token for token in range(chunk.first, chunk.stop) if tree.parents[token] < chunk.first]
        assert {int(tree.parents[root]) for root in roots} == {path[-1].stop - 1 if path else -1}
        assert int(tree.positions[chunk.first]) == above
        is_one_path = len(roots) == 1 and int(tree.positions[chunk.stop - 1]) - above == chunk.stop - chunk.first - 1
        assert above + chunk.stop - chunk.first <= budget or is_one_path
        if chunk.stop < chunk.end:
            assert is_one_path
            path.append(chunk)
    assert at == len(tree)


@pytest.mark.parametrize("budget", [1, 500])
def test_a_tree_that_branches_at_each_of_its_tokens_is_no_trouble(budget):
    """A comb: row n leaves the first n tokens of the longest."""
    count = 1_500
    ends = torch.tensor([2 * count - tooth for tooth in range(count)] + [count + 1 + tooth for tooth in range(count)])
    parts = list(subtree_chunks(ends, budget))
    assert sum(part.stop - part.first for part in parts) == 2 * count
