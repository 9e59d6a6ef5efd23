"""`sleuth check data` and `sleuth check texts`: all findings, in the report and in print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.answers.data_check import MAX_EXAMPLES, Findings, check_data

REAL_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
NONE = Findings(count=0, first=())


def row(name: str, question: str = "", **more: object) -> dict[str, object]:
    return {"id": name, "question": question or f"Who is {name}?", "golden_answers": ["Ada"]} | more


def written(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows))
    return path


def test_sound_questions_have_nothing_but_their_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", row("a", data_source="nq"), row("b"), row("c", data_source="nq"))
    found = check_data(path)
    assert (found.rows, found.refused, found.sources, found.overlap) == (3, 0, {"nq": 2, "": 1}, None)
    assert {found.malformed, found.repeated_ids, found.repeated_questions, found.empty_answers} == {NONE}


def test_every_malformed_row_is_counted_and_the_first_few_are_told(tmp_path: Path) -> None:
    bad = [
        "{",
        "[]",
        '{"id": "x"}',
        json.dumps(row("y", question=" ")),
        json.dumps(row("z", golden_answers=[[3]])),
    ]
    path = written(tmp_path / "q.jsonl", row("a"), *bad, *bad, row("b"))
    found = check_data(path)
    assert (found.rows, found.malformed.count, found.refused, sum(found.sources.values())) == (12, 10, 10, 2)
    assert found.malformed.first[0].startswith(f"{path}:2: not JSON (")
    assert found.malformed.first[1:] == (
        f"{path}:3: expected a JSON object, found list",
        f"{path}:4: no `question`; the row has id",
        f"{path}:5: `question` is empty",
        f"{path}:6: `golden_answers` should be a string, found list",
    )
    assert len(found.malformed.first) == MAX_EXAMPLES


def test_an_id_that_an_earlier_row_has_would_be_refused_by_a_run(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", row("a"), row("a", "Who else?"))
    found = check_data(path)
    assert found.repeated_ids == Findings(count=1, first=(f"{path}:2: id 'a' repeats that of {path}:1",))
    assert found.refused == 1


def test_a_question_in_the_same_words_is_told_and_not_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", row("a", "Who wrote it?"), row("b", "who  wrote IT"), row("c", "who wrote?"))
    found = check_data(path)
    told = f"{path}:2: question 'who  wrote IT' repeats that of {path}:1"
    assert found.repeated_questions == Findings(count=1, first=(told,))
    assert found.refused == 0


def test_a_golden_answer_of_which_normalising_leaves_nothing_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", row("a", golden_answers=["The", "Ada"]), row("b", golden_answers=["?!"]))
    assert check_data(path).empty_answers.count == 2
    assert check_data(path).empty_answers.first[0] == f"{path}:1: golden answer 'The' is empty after normalisation"


def test_questions_that_other_data_asks_too_are_told_with_both_places(tmp_path: Path) -> None:
    train = written(tmp_path / "train.jsonl", row("a", "Who wrote it?"), row("b"), "{")
    test = written(tmp_path / "test.jsonl", row("x"), row("y", "who wrote it"))
    told = f"{test}:2: 'who wrote it' is also at {train}:1"
    assert check_data(test, train).overlap == Findings(count=1, first=(told,))


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the checkout")
def test_the_real_questions_are_sound_and_train_and_test_do_not_overlap() -> None:
    train = check_data(REAL_DATA / "qa_train.jsonl", REAL_DATA / "qa_test.jsonl")
    assert (train.rows, train.refused, train.overlap) == (3561, 0, NONE)
    assert train.sources["nq_gold"] == 1346
    newer = check_data(REAL_DATA / "questions_nq_efficientqa_dev.jsonl")
    assert newer.empty_answers.count == 1  # a comma
    assert check_data(REAL_DATA / "strategyqa_train.jsonl.gz").repeated_questions.count == 1


def test_sound_texts_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *({"id": f"d{at}", "text": f"Text {at}.", "source": "w"} for at in range(6)))
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
    path = written(tmp_path / "t.jsonl", good, {"id": "b", "text": ""}, {"id": "a", "text": "One. "})
    other = written(tmp_path / "o.jsonl", {"id": "x", "text": " One."})
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


def test_texts_that_a_teacher_changed_are_listed(tmp_path: Path) -> None:
    same = {"id": "a", "raw_text": "Rain falls. Go.", "augmented_text": "Rain falls.<think>wet</think> Go."}
    other = {"id": "b", "raw_text": "Snow falls. Go.", "augmented_text": "Snow fell.<think>cold</think> Go."}
    path = written(tmp_path / "t.jsonl", same, other)
    result = sleuth("check", "texts", path)
    assert result.exit_code == 0
    for line in (
        "thoughts: 1",
        "texts whose copy with thoughts differs from them, so that a run skips it: 1",
        f"  {path}:2: `augmented_text` without its thoughts is not the text of 'b'",
    ):
        assert line in result.stdout.splitlines()
