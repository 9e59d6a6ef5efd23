"""Families: what recipes may name, and where it stands."""

from __future__ import annotations

from typing import get_args

import pytest

from sleuth import family
from sleuth.cite import FAMILY as CITE
from sleuth.family import CORE, Part
from sleuth.read import FAMILY as READ
from sleuth.recipe.rewards import RewardFields
from sleuth.recipe.strict import KindTable, OneOf, StrictModel
from sleuth.search import FAMILY as SEARCH
from sleuth.think import FAMILY as THINK

OURS = (CORE, SEARCH, THINK, CITE, READ)
PARTS: tuple[Part, ...] = get_args(Part)


@pytest.mark.parametrize("part", PARTS)
def test_every_kind_is_of_one_family_and_names_a_table_that_is_chosen_by_it(part: Part) -> None:
    named = [kind for one in OURS for kind in getattr(one, part)]
    assert sorted(named) == sorted(family.kinds(part)), "two families have one of a name"
    for kind in family.kinds(part):
        table = family.table(part, kind)
        if part == "dialects":
            assert table.name == kind
        elif part in ("texts", "layouts", "skills", "outcomes"):
            assert table is not None
        else:
            assert issubclass(table, KindTable)
            assert table.own_kind() == kind


def test_a_place_takes_the_kinds_that_fit_it_and_no_other() -> None:
    place = OneOf("rewards", lambda reward: reward.scores == ("thought",))
    assert [table.own_kind() for table in place.tables()] == ["suffix", "gain"]
    assert issubclass(place.tables()[0], RewardFields)
    assert not [table for table in OneOf("judges").tables() if not issubclass(table, StrictModel)]
