from __future__ import annotations

from sleuth.cite.annotate_rubrics import spoiled

GOOD = "<snippet id=a1>Ada Voss was born in Tarn in 1874.</snippet>"


def test_every_way_of_spoiling_leaves_ids_alone_and_changes_what_is_said() -> None:
    assert spoiled(GOOD, "Celia wrote it.") == {
        "another": "Celia wrote it.",
        "half": "<snippet id=a1>Ada Voss was",
        "denied": "<snippet id=a1>Ada Voss was not born in Tarn in 1874.</snippet>",
        "numbers_changed": "<snippet id=a1>Ada Voss was born in Tarn in 4107.</snippet>",
    }


def test_a_way_that_changes_nothing_or_leaves_nothing_is_none() -> None:
    assert spoiled("Tarn.", "") == {}
    assert spoiled("Ada Voss of Tarn.", "Ada Voss of Tarn.").keys() == {"half"}
