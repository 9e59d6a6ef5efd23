"""Files of what was measured: whole, and known to be of a model by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.runs.eval_file import read_eval, write_eval


def test_a_file_speaks_of_the_models_that_it_names_wherever_their_run_was_moved(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    contents = {"model": "runs/a/checkpoints/step-000010", "against": "hub/base", "em": {"value": 0.5}}
    assert read_eval(file, model="anything") is None
    write_eval(file, contents)
    assert read_eval(file, model="moved/to/step-000010") == contents
    assert read_eval(file, model="moved/to/step-000010", against="models/base") == contents
    assert read_eval(file, model="runs/a/checkpoints/step-000020") is None
    assert read_eval(file, model="runs/a/checkpoints/step-000010", against="hub/other") is None


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    write_eval(file, {"model": "größer"})
    before = file.read_bytes()
    assert before == '{\n "model": "größer"\n}\n'.encode()
    with pytest.raises(TypeError):
        write_eval(file, {"model": "m", "records": object()})
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]
