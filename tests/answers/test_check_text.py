"""`sleuth check texts`: what it prints, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from verb import sleuth


def texts(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sound_texts_are_counted(tmp_path: Path) -> None:
    path = texts(tmp_path / "t.jsonl", *({"id": f"d{at}", "text": f"Text {at}.", "source": "w"} for at in range(6)))
    result = sleuth("check", "texts", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{path}: 6 documents, 42 characters",
        "          6  w",
        "by part: sft 1, rl 5, held_out 0",
        "malformed rows: 0",
        "ids that an earlier row has: 0",
        "texts that an earlier row has, which a run skips: 0",
    ]


def test_malformed_texts_end_with_status_2_after_all_that_was_found(tmp_path: Path) -> None:
    good = {"id": "a", "text": "One.", "cut": 2, "thoughts": [{"at": 1, "text": "So."}]}
    path = texts(tmp_path / "t.jsonl", good, {"id": "b", "text": ""}, {"id": "a", "text": "One. "})
    other = texts(tmp_path / "o.jsonl", {"id": "x", "text": " One."})
    result = sleuth("check", "texts", path, "--against", other)
    assert result.exit_code == 2
    for line in (
        "with a place where their ending begins: 1",
        "thoughts: 1",
        "malformed rows: 1",
        f"  {path}:2: `text` is empty",
        f"  {path}:3: id 'a' repeats that of {path}:1",
        f"  {path}:3: the text of 'a' repeats that of {path}:1",
        f"texts that {other} has too: 2",
    ):
        assert line in result.stdout.splitlines()
    assert result.stderr.startswith(f"error: {path}: of 3 rows, malformed: 1, with a repeated id: 1; ")
    found = json.loads(sleuth("check", "texts", path, "--json").stdout)
    assert (found["ok"], found["rows"], found["parts"], found["overlap"]) == (
        False,
        3,
        {"sft": 2, "rl": 0, "held_out": 0},
        None,
    )


def test_plain_text_and_a_folder_of_texts_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be.")
    assert sleuth("check", "texts", tmp_path / "a.txt").stdout.startswith(
        f"{tmp_path / 'a.txt'}: 1 documents, 6 characters"
    )
    assert sleuth("check", "texts", tmp_path).stdout.startswith(f"{tmp_path}: 1 documents")


def test_texts_that_a_teacher_changed_are_listed(tmp_path: Path) -> None:
    same = {"id": "a", "raw_text": "Rain falls. Go.", "augmented_text": "Rain falls.<think>wet</think> Go."}
    other = {"id": "b", "raw_text": "Snow falls. Go.", "augmented_text": "Snow fell.<think>cold</think> Go."}
    path = texts(tmp_path / "t.jsonl", same, other)
    result = sleuth("check", "texts", path)
    assert result.exit_code == 0
    for line in (
        "thoughts: 1",
        "texts whose copy with thoughts differs from them, so that a run skips it: 1",
        f"  {path}:2: `augmented_text` without its thoughts is not the text of 'b'",
    ):
        assert line in result.stdout.splitlines()


def test_texts_that_do_not_exist_are_one_line(tmp_path: Path) -> None:
    result = sleuth("check", "texts", tmp_path / "nowhere.txt")
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path / 'nowhere.txt'}: no such file or folder\n")
