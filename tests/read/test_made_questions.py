"""`sleuth annotate questions`: made of passages, through gates, split by document, kept after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, Answer, ChatServer, part, says
from typer.testing import Result
from verb import sleuth

from sleuth.answers.match import appears_in
from sleuth.data.forms import formed
from sleuth.data.questions import load_questions
from sleuth.read.gates import GATES, Candidate, Gates, is_near_copy, needs_both
from sleuth.read.texts import read_passages, read_reading_questions
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.open_index import open_index
from sleuth.types import Passage

PARTS = ("train", "test")
NAMES = ("Ada", "Bela", "Cora", "Dora", "Edda", "Fria", "Gerd", "Hild", "Ines", "Jole", "Kaja", "Lene")
TOWNS = ("Tarn", "Velde", "Ulm", "Brno", "Graz", "Linz", "Metz", "Nantes", "Oslo", "Pisa", "Riga", "Sofia")
CASTLES = ("Hohenau", "Lichtfels", "Marburg", "Neudeck", "Orlik", "Pernstein") * 2


def passages() -> list[Passage]:
    """Twelve people of a document each, and twelve castles that one of them founded."""
    people = [
        Passage(
            id=f"p{at}.txt#1",
            title=f"{name} Voss",
            text=f"{name} Voss was born in {TOWNS[at]} in {1800 + at}. She moved to the coast as a child and painted.",
        )
        for at, name in enumerate(NAMES)
    ]
    castles = [
        Passage(
            id=f"c{at}.txt#1", title=f"Castle {at}", text=f"{name} Voss founded the {CASTLES[at]} Museum {at} Hall."
        )
        for at, name in enumerate(NAMES)
    ]
    return [*people, *castles]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    rows = ({"id": one.id, "contents": f'"{one.title}"\n{one.text}'} for one in passages())
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def made(corpus: Path, *options: object) -> Result:
    return sleuth("annotate", "questions", corpus, corpus.parent / "out", *options)


def rows(corpus: Path) -> list[dict[str, Any]]:
    return [row for part in PARTS for row in rows_of(corpus, part)]


def rows_of(corpus: Path, part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (corpus.parent / f"out/{part}.jsonl").read_text().splitlines()]


def documents(corpus: Path) -> list[set[str]]:
    return [{row["document"] for row in rows_of(corpus, part)} for part in PARTS]


def with_teacher(corpus: Path, answer: Answer, *options: object) -> Result:
    with ChatServer(answer=answer).running() as server:
        teacher = corpus.with_name("teacher.toml")
        teacher.write_text(f'[teacher]\nurls = ["{server.url}"]\nmodel = "{MODEL}"\n')
        return made(corpus, "--teacher", teacher, *options)


@pytest.mark.parametrize(
    ("text", "title", "question", "answer"),
    [
        ("Ada Voss was born in Tarn in 1890.", "", "When was Ada Voss born in Tarn?", "1890"),
        ("Voss was born in Tarn.", "Ada Voss (painter)", "Where was Ada Voss born?", "Tarn"),
        (
            "Ada Voss painted. She joined the Tarn Guild in 1890.",
            "Ada Voss",
            "When did Ada Voss join the Tarn Guild?",
            "1890",
        ),
        ("In 1890, Ada Voss opened the Tarn Museum.", "", "When did Ada Voss open the Tarn Museum?", "1890"),
        ("The Tarn Museum was founded by Ada Voss.", "", "By whom was the Tarn Museum founded?", "Ada Voss"),
        ("The Tarn Museum has 12 halls.", "", "How many halls does the Tarn Museum have?", "12"),
        ("Ada Voss was the mayor of Tarn.", "", "Who was the mayor of Tarn?", "Ada Voss"),
        ("Ada Voss founded the Tarn Museum.", "", "Who founded the Tarn Museum?", "Ada Voss"),
        ("Ada Voss (born 4 May 1890) is a painter.", "", "When was Ada Voss born?", "4 May 1890"),
    ],
)
def test_a_sentence_of_each_form_becomes_its_question(text: str, title: str, question: str, answer: str) -> None:
    assert (question, answer) in [(one.question, text[one.start : one.end]) for one in formed(text, title)]


def test_a_word_that_only_begins_a_sentence_is_no_name() -> None:
    assert not [*formed("Protests began in 1890. Officially opened in 1891. She died in 1892.", "Tarn")]


def test_questions_about_an_edited_passage_are_made_again_and_of_one_that_is_gone_fall(corpus: Path) -> None:
    made(corpus)
    before = {row["id"]: row for row in rows(corpus)}
    texts = corpus.read_text().replace("born in Tarn", "born in Kiel").splitlines(keepends=True)
    corpus.write_text("".join(line for line in texts if "p1.txt#1" not in line))
    made(corpus)
    after = {row["id"]: row for row in rows(corpus)}
    assert any(id_.endswith("p0.txt#1:0") and "Tarn" in str(row) for id_, row in before.items())
    assert not any("Tarn" in str(row) for row in after.values())
    assert any("Kiel" in str(row) for row in after.values())
    assert any("p1.txt#1" in row.get("gold_ids", ()) for row in before.values())
    assert not any("p1.txt#1" in row.get("gold_ids", ()) for row in after.values())
    lines = (corpus.parent / "out/made.jsonl").read_text().count("\n")
    made(corpus)
    assert (corpus.parent / "out/made.jsonl").read_text().count("\n") == lines


def test_questions_without_a_model_are_split_by_document_and_can_be_trained_on(corpus: Path) -> None:
    result = made(corpus)
    assert result.exit_code == 0, result.stderr
    out = corpus.parent / "out"
    found = rows(corpus)
    assert {row["type"] for row in found} == {"cloze", "form", "two_hop", "unanswerable"}
    sides = documents(corpus)
    assert [len(side) for side in sides] == [22, 2]
    assert len(set.union(*sides)) == 24
    assert json.loads((out / "card.json").read_text())["documents"] == {"train": 22, "test": 2}
    assert [task.kind for task in load_questions(out / "train.jsonl")]
    two = next(row for row in found if row["type"] == "two_hop")
    assert (two["gold_ids"][0][0], two["gold_ids"][1][0]) == ("p", "c")
    assert "Voss" not in two["question"]
    answerable = [row for row in found if row["type"] != "unanswerable"]
    (out / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answerable))
    assert len(read_reading_questions(out / "some.jsonl", read_passages([corpus]))) == len(answerable)
    lost = next(row for row in found if row["type"] == "unanswerable")
    assert lost["answerable"] is False
    assert not appears_in(lost["lost_answer"], lost["tool_output"])
    task = next(task for name in ("train", "test") for task in load_questions(out / f"{name}.jsonl") if task.evidence)
    assert task.evidence is not None
    assert task.evidence.answerable is False
    assert task.evidence.snippets


def test_no_document_is_on_both_sides_after_the_corpus_has_grown(corpus: Path) -> None:
    made(corpus, "--kinds", "form")
    more = (
        {"id": f"q{at}.txt#1", "contents": f'"Q"\nBo Lind sold the Mill of {town} in {1700 + at}.'}
        for at, town in enumerate(TOWNS * 8)
    )
    corpus.write_text(corpus.read_text() + "".join(json.dumps(row) + "\n" for row in more))
    made(corpus)
    sides = documents(corpus)
    assert all(sides[::2])
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_a_command_that_was_killed_goes_on_and_ends_with_the_same_files(corpus: Path) -> None:
    made(corpus)
    out = corpus.parent / "out"
    whole = {name: (out / name).read_bytes() for name in ("train.jsonl", "test.jsonl", "card.json", "made.jsonl")}
    lines = whole["made.jsonl"].decode().splitlines(keepends=True)
    (out / "made.jsonl").write_text("".join(lines[:20]) + lines[20][:30])  # as a killed process leaves it
    (out / "train.jsonl").unlink()
    assert made(corpus).exit_code == 0
    assert {name: (out / name).read_bytes() for name in whole} == whole


def test_another_file_in_the_place_of_what_was_made_is_one_line(corpus: Path) -> None:
    (corpus.parent / "out").mkdir()
    file = corpus.parent / "out" / "made.jsonl"
    for line in ("[]", "3", "{}", '{"unit": "a", "rows": [], "made_of": []}', "no json"):
        for text in (f"{line}\n", line):  # without its end it is still the file of somebody else
            file.write_text(text)
            assert made(corpus).stderr.endswith("made.jsonl:1: was not written by annotate; name another folder\n")
            assert file.read_text() == text


def test_what_each_gate_is_for_is_said_in_a_line_of_80_columns() -> None:
    assert max(len(f"{'':6} fell at {gate:<11} {meaning}") for gate, meaning in GATES.items()) <= 80


def good(body: dict[str, Any]) -> tuple[int, object]:
    """A sound teacher: asks for the birth of who is in the passage, answers from passages, and knows nothing else."""
    passage, question = part(body, "passage"), part(body, "question")
    name, *rest = passage.split("\n")[-1].split(" was born in ")
    town = rest[0].split(" in ")[0] if rest else ""
    if question:
        return says(json.dumps({"answer": town if name in question else ""}))
    asked = [{"question": f"Where was {name} born?", "answer": town}] if town else []
    return says(json.dumps({"questions": asked}))


def test_a_teachers_questions_are_kept_if_answered_with_the_passage_and_not_without(corpus: Path) -> None:
    assert with_teacher(corpus, good, "--kinds", "one_hop").exit_code == 0
    assert len(rows(corpus)) == 12

    def knows(body: dict[str, Any]) -> tuple[int, object]:
        """As well read: it needs no passage for Ada's town."""
        ada = not part(body, "passage") and "Ada" in part(body, "question")
        return says(json.dumps({"answer": "Tarn"})) if ada else good(body)

    (corpus.parent / "out" / "made.jsonl").unlink()
    assert with_teacher(corpus, knows, "--kinds", "one_hop").exit_code == 0
    assert len(rows(corpus)) == 11
    card = json.loads((corpus.parent / "out" / "card.json").read_text())
    assert card["fell"] == {"closed_book": {"one_hop": 1}}
    assert card["examples"]["closed_book"][0]["question"] == "Where was Ada Voss born?"
    (corpus.parent / "out" / "made.jsonl").unlink()
    assert with_teacher(corpus, knows, "--kinds", "one_hop", "--without", "closed_book").exit_code == 0
    assert len(rows(corpus)) == 12


def written(question: Callable[[str], str], answer: Callable[[str], str]) -> Answer:
    def reply(body: dict[str, Any]) -> tuple[int, object]:
        text = part(body, "passage").split("\n")[-1]
        one = {"question": question(text), "answer": answer(text)}
        return says(json.dumps({"answer": answer(text)} if part(body, "question") else {"questions": [one]}))

    return reply


@pytest.mark.parametrize(
    ("rubbish", "gate"),
    [
        (lambda body: says("I am a helpful assistant."), "unreadable"),
        (lambda body: says(""), "unreadable"),
        (lambda body: says(json.dumps({"questions": []})), "none was made"),
        (written(lambda text: "Where was Max Muster born?", lambda text: "Berlin"), "asks"),
        (written(lambda text: text, lambda text: text.split()[0]), "asks"),
        (written(lambda text: f"Wo wurde denn {text.split()[0]} wohl geboren?", lambda text: text.split()[-1]), "asks"),
    ],
    ids=["fixed text", "nothing", "no questions", "fixed question", "copies", "other language"],
)
def test_a_teacher_that_writes_rubbish_yields_no_rows_and_one_line(corpus: Path, rubbish: Answer, gate: str) -> None:
    result = with_teacher(corpus, rubbish, "--kinds", "one_hop")
    assert result.exit_code == 2
    [line] = [line for line in result.stderr.splitlines() if "questions " not in line[:10]]
    assert "passed the gates, so nothing is written" in line
    assert gate in line
    assert not (corpus.parent / "out" / "train.jsonl").exists()
    assert with_teacher(corpus, good, "--kinds", "one_hop").exit_code == 0  # nothing of the rubbish is in its way


def test_a_teacher_that_falls_silent_ends_it_with_one_line_and_the_same_command_goes_on(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sleuth.read.made_questions.TOGETHER", 4)
    asked = 0

    def until_it_is_paid(body: dict[str, Any]) -> tuple[int, object]:
        nonlocal asked
        asked += 1
        return good(body) if asked <= 20 else (402, {"error": "no credit is left"})

    first = with_teacher(corpus, until_it_is_paid, "--kinds", "one_hop")
    assert first.exit_code == 1
    [line] = [line for line in first.stderr.splitlines() if "questions " not in line[:10]]
    assert "stopped at passage" in line
    assert "no credit is left" in line
    some = rows(corpus)
    assert 0 < len(some) < 12
    assert with_teacher(corpus, good, "--kinds", "one_hop").exit_code == 0
    assert len(rows(corpus)) == 12
    again = with_teacher(corpus, until_it_is_paid, "--kinds", "one_hop")  # it has nothing to do
    assert again.exit_code == 0


def test_no_question_is_a_paraphrase_of_a_held_out_one(corpus: Path) -> None:
    held_out = corpus.with_name("held_out.jsonl")
    held_out.write_text(json.dumps({"question": "in which year was Ada Voss of Tarn born", "golden_answers": ["1800"]}))
    made(corpus, "--kinds", "form", "--held-out", held_out)
    assert not [row for row in rows(corpus) if "Ada Voss born" in row["question"] and row["golden_answers"] == ["1800"]]
    assert [row for row in rows(corpus) if "Bela Voss born" in row["question"]]


def test_each_gate_drops_what_it_is_for_and_nothing_when_it_is_off(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    texts = ["Ada Voss was born in Tarn.", "Ada Voss was born in Ulm.", "Bela Voss was born in Graz."]
    texts += [f"Zoe Kant met Zoe Kant at the fair {at}." for at in range(11)] + [
        "Nothing of Zoe Kant is known at Kiel."
    ]
    file.write_text("".join(json.dumps({"id": str(at), "contents": text}) + "\n" for at, text in enumerate(texts)))
    build_index(file, tmp_path / "index")
    index, words = (
        open_index(tmp_path / "index"),
        frozenset(" ".join((*texts, "who when where")).lower().replace(".", "").split()),
    )
    found = [index.passage(str(at)) for at in range(len(texts))]

    def falls(question: str, answer: str, *places: int, off: str = "") -> str:
        given = tuple(one for at in places if (one := found[at]) is not None)
        gates = Gates(index=index, vocabulary=words, off=frozenset([off]))
        gates.remember("Where was Bela Voss born?", ["Graz"])
        one = Candidate(id="1", kind="form", part="", question=question, answer=answer, passages=given, start=0)
        return gates.falls([one])[0]

    cases = {
        "asks": ("Where was Ada Voss born in Tarn?", "Tarn", 0),
        "stands": ("Where was Zoe Kant known?", "Graz", 14),
        "named": ("Where was she born?", "Tarn", 0),
        "only": ("Where was Ada Voss born?", "Tarn", 0),
        "new": ("Where was Bela Voss born?", "Graz", 2),
        "found": ("Zoe Kant met at the fair where?", "Kiel", 14),
    }
    for gate, case in cases.items():
        assert falls(*case) == gate
        assert falls(*case, off=gate) != gate
    assert falls("Where was Ada Voss born?", "Tarn", 0, off="only") == ""


def test_two_hops_need_both_passages_and_near_copies_share_most_words() -> None:
    first = Passage(id="1", title="", text="Ada Voss founded the Tarn Museum.")
    second = Passage(id="2", title="", text="Ada Voss was born in 1890.")
    whole = Passage(id="3", title="", text="The one that founded the Tarn Museum was born in 1890.")
    ask = {"id": "1", "kind": "two_hop", "part": "", "question": "When was the one that founded the Tarn Museum born?"}
    assert needs_both(Candidate(**ask, answer="1890", passages=(first, second), start=0))
    assert not needs_both(Candidate(**ask, answer="1890", passages=(first, whole), start=0))
    assert is_near_copy(second.text, "Ada Voss was born in 1891.")
    assert not is_near_copy(first.text, second.text)


@pytest.mark.slow
def test_the_model_itself_is_asked_by_its_template(corpus: Path) -> None:
    chat = made(corpus, "--model", "models/tiny-base", "--limit", "4")
    assert chat.exit_code == 2
    assert "at unreadable" in chat.stderr  # it was asked, and writes no JSON


def test_what_cannot_be_meant_is_told_in_one_line_each(corpus: Path) -> None:
    result = made(corpus, "--kinds", "cloze,riddle,one_hop", "--without", "taste")
    assert result.exit_code == 2
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == [
        "--kinds riddle",
        "--kinds one_hop",
        "--without taste",
    ]
    corpus.write_text('{"id": "a.txt#1", "contents": "Ada Voss was born in Tarn."}\n')
    assert "needs at least two different documents" in made(corpus).stderr
