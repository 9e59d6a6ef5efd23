"""What tools/fit_certainty.py takes out of a search, and the table that it prints."""

from __future__ import annotations

from pathlib import Path

from verb import write_rows

from sleuth.evaluation.certainty import Certainty
from sleuth.retrieval.bm25 import build_index
from sleuth.types import Task
from tools.fit_certainty import steps, table, taken_out, withheld

GOLD = "Ada Voss was born in Tarn, a town by the lake of the north."
COPY = "It is said that Ada Voss was born in Tarn, a town by a lake."
OTHER = "Tarn is a town by a lake, with a mill that nobody has seen."


def test_the_gold_passage_and_its_near_copies_are_taken_out(tmp_path: Path) -> None:
    texts = {"1": GOLD, "2": COPY, "3": OTHER}
    rows = [{"id": name, "contents": f'"Tarn"\n{text}'} for name, text in texts.items()]
    build_index(write_rows(tmp_path / "corpus.jsonl", rows), tmp_path / "index")
    tasks = [
        Task(id=name, question="Who?", golden_answers=("Ada",), gold_passages=(gold,))
        for name, gold in (("of two", "1"), ("of one", "3"), ("of none", "4"))
    ]
    assert taken_out(tasks, tmp_path / "index") == {"of two": ["1", "2"], "of one": ["3"], "of none": []}


def test_the_table_has_the_share_lost_and_withheld_of_other_answers_at_each_threshold() -> None:
    answers = [((at / 100,), at >= 50) for at in range(100)]
    fitted = Certainty.fit(answers)
    others = [((0.5,), True), ((0.52,), True), ((0.6,), False), ((0.1,), False), (None, False)]
    assert withheld(fitted, others, right=True).startswith("0.500")
    rows = table(fitted, answers, others, others[2:])
    cells = [[cell.strip().split(" ")[0] for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert cells[0] == ["0", "0.000", "0.667", "0.667"]
    assert cells[2] == ["0.1", "1.000", "0.667", "0.667"]
    assert cells[-1] == ["0.5", "1.000", "1.000", "1.000"]
    [_, _, row] = steps(fitted, others)
    assert [cell.strip().split(" ")[0] for cell in row.strip("|").split("|")] == ["0.500", "0.500", "4"]
