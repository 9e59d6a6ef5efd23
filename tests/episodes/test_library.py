"""Prompts by their names: ours travel with the package, published ones come from a file the user has, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sleuth
from sleuth.dialect import DIALECTS
from sleuth.episodes import library
from sleuth.episodes.library import (
    PUBLISHED,
    PublishedPrompt,
    folder,
    import_prompt,
    our_names,
    place_of,
    read_prompt,
    require_askable,
    sha256_of,
    stored_file,
)
from sleuth.types import SleuthError

SYSTEM = "Look it up.\nThen answer in \\boxed{}."
USER = "Look it up. Question: {prompt}\n"
SENTENCE = "\nNot like that.\n"


def known(name: str, text: str, role: str, place: str | None = None) -> PublishedPrompt:
    sha256 = sha256_of(text.encode())
    source = "a file of theirs"
    return PublishedPrompt(name=name, role=role, place=place, source=source, sha256=sha256, ours="plain")


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prompts that are as if published, and a data folder of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for prompt in (
        known("theirs_system", SYSTEM, "system"),
        known("theirs_user", USER, "user", "{prompt}"),
        known("theirs_hint", SENTENCE, "hint"),
    ):
        monkeypatch.setitem(PUBLISHED, prompt.name, prompt)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A Python file that holds all three, and would do harm if it ran."""
    file = tmp_path / "templates.py"
    file.write_text(
        'raise SystemExit("executed")\n'
        f"SYSTEM = (\n    {SYSTEM[:12]!r}\n    {SYSTEM[12:]!r}\n)\n"
        f"def ask(question):\n    hint = f{SENTENCE!r}\n    return {USER!r}.format(prompt=question), f'{{hint}}'\n"
    )
    return file


def rows(file: Path, *contents: tuple[str, str]) -> Path:
    prompts = [[{"role": "user", "content": content}] for content, _ in contents]
    pq.write_table(pa.table({"prompt": prompts, "question": [question for _, question in contents]}), file)
    return file


def test_our_prompts_are_found_by_name_from_any_folder_and_travel_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_prompt("plain") == "Question: {question}\n"
    for name in our_names():
        assert (Path(sleuth.__file__).parent / "episodes" / "prompts" / f"{name}.txt").read_bytes() == read_prompt(
            name
        ).encode()


def test_a_prompt_of_ones_own_is_found_by_its_path_and_kept_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"\tAsk:\r\n{question}\r\n")
    assert read_prompt(str(tmp_path / "mine.txt")) == "\tAsk:\r\n{question}\r\n"


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [(None, "no such file, and no prompt of that name; there are .*plain.*theirs_user"), (b"\xff", "UTF-8")],
)
def test_a_prompt_that_cannot_be_read_is_one_line(tmp_path: Path, contents: bytes | None, complaint: str) -> None:
    if contents is not None:
        (tmp_path / "mine.txt").write_bytes(contents)
    with pytest.raises(SleuthError, match=complaint) as raised:
        read_prompt(str(tmp_path / "mine.txt"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "role", "name", "complaint"),
    [
        ("Answer!", "raw", "mine", "mine: the prompt has no {question}, so the question would never be asked"),
        ("Answer!", "user", "mine", 'if it is meant as a system message, set prompt_role = "system"'),
        ("Answer {question}", "system", "mine", "mine: the prompt has a {question}, but"),
        ("Answer {question}", "user", "theirs_hint", "this text is a hint after an invalid action: set it as hint"),
        (USER.replace("{prompt}", "{question}"), "user", "mine", None),
        (USER, "user", "theirs_user", None),
        (SYSTEM, "system", "theirs_system", None),
        (SYSTEM, "raw", "theirs_system", "theirs_system: the prompt has no {question}"),
    ],
)
def test_a_prompt_must_ask_the_question_once(text: str, role: str, name: str, complaint: str | None) -> None:
    if complaint is None:
        require_askable(text, role, name)
        return
    with pytest.raises(SleuthError) as caught:
        require_askable(text, role, name)
    assert complaint in str(caught.value)


def test_the_question_has_the_place_that_a_prompts_authors_gave_it() -> None:
    assert place_of(USER) == "{prompt}"
    assert place_of(f"{USER} ") == "{question}"


@pytest.mark.parametrize("name", ["theirs_system", "theirs_user", "theirs_hint"])
def test_a_published_prompt_is_taken_from_a_source_that_is_never_run(source: Path, name: str) -> None:
    kept = folder() / f"{name}.txt"
    import_prompt(name, source)
    assert sha256_of(kept.read_bytes()) == PUBLISHED[name].sha256
    assert read_prompt(name).encode() == kept.read_bytes()
    assert import_prompt(name, kept).encode() == kept.read_bytes()


def test_a_published_prompt_is_taken_from_a_text_with_a_line_break_too_many(tmp_path: Path) -> None:
    (tmp_path / "copied.txt").write_text(f"{SYSTEM}\n")
    import_prompt("theirs_system", tmp_path / "copied.txt")
    assert read_prompt("theirs_system") == SYSTEM


@pytest.mark.parametrize("question", ["who was Ada", "who was Ada?", "what is {prompt}", "Question:"])
def test_a_published_prompt_is_taken_from_a_row_whose_question_is_in_it(tmp_path: Path, question: str) -> None:
    asked = question if question.endswith("?") else f"{question}?"
    file = rows(tmp_path / "train.parquet", ("Something else.", "x"), (USER.replace("{prompt}", asked), question))
    import_prompt("theirs_user", file)
    assert read_prompt("theirs_user") == USER


def test_what_is_not_those_very_bytes_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "near.txt").write_text(SYSTEM.replace("Then", "then"))
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"prompt": ["x"]}).slice(0, 0), tmp_path / "empty.parquet")
    for name, file, complaint in [
        ("theirs_system", "near.txt", "does not hold theirs_system: nothing in it has the sha256"),
        ("theirs_system", "broken.py", "is no Python source"),
        ("theirs_system", "bytes.txt", "is neither UTF-8 text nor .parquet"),
        ("theirs_system", "none.txt", "none.txt: cannot be read: No such file"),
        ("theirs_system", ".", "cannot be read: Is a directory"),
        ("theirs_system", "torn.parquet", "no parquet file that could be read"),
        ("theirs_system", "other.parquet", "its rows have no column `prompt`"),
        ("theirs_system", "empty.parquet", "no parquet file that could be read"),
        ("mine", "near.txt", "no published prompt of that name; there are p1_basic_w_ex"),
    ]:
        with pytest.raises(SleuthError, match=complaint) as caught:
            import_prompt(name, tmp_path / file)
        assert "\n" not in str(caught.value)
    assert not folder().exists()


def test_a_published_prompt_that_is_not_there_says_where_it_is_published_and_what_ours_is() -> None:
    with pytest.raises(SleuthError) as caught:
        read_prompt("p3_decide_no_ex")
    assert "published as P3_DECIDE_NO_EX_TEMPLATE in" in str(caught.value)
    assert "sleuth prompts import p3_decide_no_ex FILE" in str(caught.value)
    assert "our own words for it are 'research_rules'" in str(caught.value)


def test_a_kept_prompt_that_was_edited_is_refused(source: Path) -> None:
    import_prompt("theirs_system", source)
    stored_file(PUBLISHED["theirs_system"]).write_text("Other.")
    with pytest.raises(SleuthError, match="is no longer the published theirs_system; import it again"):
        read_prompt("theirs_system")


# -- what is carried -------------------------------------------------------------------------------------------------


def test_no_text_of_ours_is_a_published_one() -> None:
    ours = [read_prompt(name) for name in our_names()] + [dialect.hint for dialect in DIALECTS.values()]
    known = {prompt.sha256 for prompt in PUBLISHED.values()}
    assert not {sha256_of(text.encode()) for text in ours} & known


def test_every_alternative_that_is_named_is_one_of_ours() -> None:
    assert {prompt.ours for prompt in PUBLISHED.values()} - {None} <= set(our_names())


def test_the_published_prompts_are_those_whose_bytes_are_known() -> None:
    assert json.dumps(sorted(set(PUBLISHED) - {"theirs_system", "theirs_user", "theirs_hint"})) == (
        '["p1_basic_w_ex", "p3_decide_no_ex", "search_r1_base", "search_r1_retry"]'
    )
    assert library.PUBLISHED is PUBLISHED
