"""Files of what was measured: whole, and known to be of a model by its name and its weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sleuth.host import checksums
from sleuth.host.checksums import weights_sha256, write_checksums
from sleuth.runs.eval_file import read_eval, set_aside_damaged, write_eval


def named(model: str, against: str | None = None) -> dict[str, str]:
    return {"model": model} | ({"against": against} if against else {})


def weights(folder: Path, content: bytes, *, summed: bool = False) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    if summed:
        write_checksums(folder)
    return str(folder)


def test_a_file_speaks_of_the_models_that_it_names_wherever_their_run_was_moved(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    contents = {"model": "runs/a/checkpoints/step-000010", "against": "hub/base", "em": {"value": 0.5}}
    assert read_eval(file, models=named("anything")) is None
    write_eval(file, contents)
    assert read_eval(file, models=named("moved/to/step-000010")) == contents
    assert read_eval(file, models=named("moved/to/step-000010", "models/base")) == contents
    assert read_eval(file, models=named("runs/a/checkpoints/step-000020")) is None
    assert read_eval(file, models=named("runs/a/checkpoints/step-000010", "hub/other")) is None


@pytest.mark.parametrize("summed", [True, False])
def test_an_evaluation_belongs_to_the_weights_and_not_to_their_path(tmp_path: Path, summed: bool) -> None:
    file, model = tmp_path / "e.json", weights(tmp_path / "a" / "step-000010", b"one", summed=summed)
    write_eval(file, {"model": model, "em": 0.5})
    known = read_eval(file, models=named(model))
    assert known is not None
    assert known["model_sha256"] == hashlib.sha256(b"one").hexdigest()
    weights(tmp_path / "a" / "step-000010", b"two", summed=summed)
    assert read_eval(file, models=named(model)) is None
    assert read_eval(file, models=named(weights(tmp_path / "moved" / "step-000010", b"one"))) == known


def test_the_digest_of_a_checkpoint_is_read_from_its_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weights(tmp_path / "step-000010", b"one", summed=True)
    monkeypatch.setattr(checksums, "file_sha256", lambda file: pytest.fail(f"{file} is read again"))
    assert weights_sha256(model) == hashlib.sha256(b"one").hexdigest()


def test_weights_that_only_a_server_has_read_are_not_read_for_their_digest(tmp_path: Path) -> None:
    file, model = tmp_path / "e.json", weights(tmp_path / "big", b"one")
    write_eval(file, {"model": model, "engine": {"url": "http://127.0.0.1:1"}})
    assert "model_sha256" not in json.loads(file.read_text())


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    write_eval(file, {"model": "größer"})
    before = file.read_bytes()
    assert before == '{\n "model": "größer"\n}\n'.encode()
    with pytest.raises(TypeError):
        write_eval(file, {"model": "m", "records": object()})
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_that_cannot_be_read_is_not_set_aside_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.json"
    write_eval(file, {"em": 0.5})

    def failing(path: Path) -> bytes:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "read_bytes", failing)
        with pytest.raises(OSError, match="Input/output error"):
            set_aside_damaged(tmp_path, print)
    set_aside_damaged(tmp_path, print)
    assert (json.loads(file.read_text()), capsys.readouterr().out) == ({"em": 0.5}, "")
