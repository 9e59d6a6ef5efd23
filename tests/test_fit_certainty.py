"""What tools/fit_certainty.py asks, and what it takes out of a search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sleuth.evaluation.certainty import Certainty
from sleuth.types import Passage
from tools.fit_certainty import Without, near_copies, table, withheld

GOLD = Passage(id="1", title="Ada", text="Ada Voss was born in Tarn, a town by the lake of the north.")
COPY = Passage(id="2", title="Ada", text="It is said that Ada Voss was born in Tarn, a town by a lake.")
OTHER = Passage(id="3", title="Tarn", text="Tarn is a town by a lake, with a mill that nobody has seen.")


class Finds:
    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[GOLD, COPY, OTHER][:k] for _ in queries]


def test_the_gold_passage_and_its_near_copies_are_taken_out_and_others_take_their_place() -> None:
    assert near_copies(GOLD.text, COPY.text)
    assert not near_copies(GOLD.text, OTHER.text)
    [found] = asyncio.run(Without(retriever=Finds(), gold=[GOLD]).search(["Ada"], 1))
    assert found == [OTHER]


def test_the_table_has_the_share_lost_and_withheld_of_other_answers_at_each_threshold() -> None:
    answers = [((at / 100,), at >= 50) for at in range(100)]
    fitted = Certainty.fit([(signals, is_right) for signals, is_right in answers])
    others = [((0.5,), True), ((0.52,), True), ((0.6,), False), ((0.1,), False), (None, False)]
    assert withheld(fitted, others, right=True).startswith("0.500")
    rows = table(fitted, [*answers], others, others[2:])
    cells = [[cell.strip().split(" ")[0] for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert cells[0] == ["0", "0.000", "0.667", "0.667"]
    assert cells[2] == ["0.1", "1.000", "0.667", "0.667"]
    assert cells[-1] == ["0.5", "1.000", "1.000", "1.000"]
