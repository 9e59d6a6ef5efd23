from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import taught
from benchmarks.materials import make_materials, model_folder
from benchmarks.ours import Ours
from benchmarks.shapes import SHAPES, SMALL, draw_rows
from benchmarks.sides import Terms


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("materials")
    make_materials(folder)
    return model_folder(folder, SMALL)


@pytest.mark.parametrize("teacher", taught.TEACHERS)
def test_rows_follow_a_teacher_that_is_given_and_differs_from_the_policy(model, teacher):
    shape = SHAPES["search"].miniature()
    side = Ours(Terms(model=model, setting=4_096, rows=shape.rows, siblings=shape.siblings, teacher=teacher))
    side.play([draw_rows(shape)])
    assert side.last is not None
    assert bool(side.last.teacher_kl) == (teacher is not None)


@pytest.mark.parametrize(("with_teacher", "status"), [(1.3, 0), (1.4, 1)])
def test_all_are_measured_in_turn_and_more_than_the_limit_is_told_by_the_status(
    monkeypatch, capsys, with_teacher, status
):
    made = []

    def run_in(_checkout: Path, job: str, **given) -> dict[str, float]:
        if job == "update":
            made.append(given["teacher"])
        return {"seconds": with_teacher if given.get("teacher") else 1.0}

    monkeypatch.setattr(taught, "run_in", run_in)
    monkeypatch.setattr("sys.argv", ["taught", "--rounds", "2"])
    assert taught.main() == status
    assert made == [None, "sampled", "likeliest", "sampled", "likeliest", None]
    assert capsys.readouterr().out.splitlines()[1].endswith(f"{with_teacher - 1:+.0%}")
