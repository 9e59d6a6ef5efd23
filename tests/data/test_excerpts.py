"""Documents become prefixes and suffixes of an exact number of tokens, which together are the document's own text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.data.documents import part_of
from sleuth.data.excerpts import continuations, excerpts_of
from sleuth.data.questions import questions_hash
from sleuth.recipe import TextRecipe
from sleuth.render import Renderer, decode, load_tokenizer
from sleuth.runs.rollouts import read_rollouts, write_rollouts
from sleuth.types import Document, Episode, Group, SleuthError, Trajectory

ROOT = Path(__file__).parents[2]
TOKENIZER = load_tokenizer(str(ROOT / "models" / "tiny-base"))
RENDERER = Renderer(TOKENIZER)


def recipe(texts: Path | str = "t.jsonl", **changes: Any) -> TextRecipe:
    return TextRecipe(**{"kind": "text", "texts": Path(texts), "prefix_tokens": 6, "suffix_tokens": 3} | changes)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(text: str, **changes: Any) -> Document:
    return Document(**{"id": "d", "text": text, "origin": "d"} | changes)


def test_a_document_gives_one_prefix_and_the_suffix_after_it(tmp_path: Path) -> None:
    text = " was born in Osmark in 1874. Osmark was"  # nine tokens, word by word, and more
    [task] = excerpts_of(recipe(written(tmp_path / "t.jsonl", {"id": "d", "text": text})), TOKENIZER).tasks
    assert task.continuation is not None
    prefix, suffix = task.continuation.prefix, task.continuation.suffix
    assert (len(prefix.tokens), len(suffix.tokens)) == (6, 3)
    assert (task.question, task.reference) == (" was born in Osmark in 1874", ". Osmark was")
    assert (prefix.text, suffix.text, prefix.author) == (task.question, task.reference, "source")
    assert (task.id, task.golden_answers, task.continuation.document) == ("d", (), "d")


def test_windows_follow_each_other_and_the_rest_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"id": "d", "text": " in" * 30})
    assert [task.id for task in excerpts_of(recipe(path, windows=5), TOKENIZER).tasks] == ["d", "d#1", "d#2"]
    assert len(excerpts_of(recipe(path, windows=5, limit=2), TOKENIZER).tasks) == 2


def test_documents_that_are_short_repeated_or_of_other_parts_are_counted(tmp_path: Path) -> None:
    long = [{"id": f"d{at}", "text": f" {at}" + " in" * 12} for at in range(6)]
    rows = [*long, {"id": "again", "text": long[0]["text"] + " "}, {"id": "d7", "text": " in"}]
    path = written(tmp_path / "t.jsonl", *rows)
    whole = excerpts_of(recipe(path), TOKENIZER)
    assert str(whole) == "6 prefixes with their suffixes, from 8 documents (1 repeated, 1 too short)"
    parts = {part: excerpts_of(recipe(path, part=part), TOKENIZER).tasks for part in ("sft", "rl")}
    assert sorted(task.id for tasks in parts.values() for task in tasks) == [row["id"] for row in long]
    assert all(part_of(task.id) == part for part, tasks in parts.items() for task in tasks)
    with pytest.raises(SleuthError, match=r"t\.jsonl: nothing to continue: 0 prefixes .*, 7 too short"):
        excerpts_of(recipe(path, least_tokens=20), TOKENIZER)


def test_a_document_with_a_repeated_beginning_is_in_no_part(tmp_path: Path) -> None:
    rows = [{"id": f"d{at}", "text": " in" * 9 + f" the end of {at}"} for at in range(6)]
    path = written(tmp_path / "t.jsonl", *rows)
    assert [task.id for task in excerpts_of(recipe(path, part="sft"), TOKENIZER).tasks] == ["d0"]
    with pytest.raises(SleuthError, match=r"from 6 documents \(1 for another part, 5 repeated\)"):
        excerpts_of(recipe(path, part="rl"), TOKENIZER)


def test_a_document_with_its_own_cut_is_cut_there(tmp_path: Path) -> None:
    text = " was born in Osmark in 1874."
    row = {"id": "w", "text": text, "cut": text.index(" in 1874"), "golden_answers": ["1874"], "type": "one"}
    [task] = excerpts_of(recipe(written(tmp_path / "t.jsonl", row), prefix_tokens=3), TOKENIZER).tasks
    assert (task.question, task.reference, task.golden_answers) == (" born in Osmark", " in 1874.", ("1874",))
    assert task.kind == "one"


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab é漢🙂\n"), min_size=9, max_size=60), st.integers(1, 7), st.integers(1, 7))
def test_prefix_and_suffix_are_neighbours_and_no_character_is_cut(text: str, before: int, behind: int) -> None:
    asked = recipe(prefix_tokens=before, suffix_tokens=behind)
    at = 0
    for window in continuations(document(text), asked, RENDERER):
        together = window.prefix.text + window.suffix.text
        assert (len(window.prefix.tokens), len(window.suffix.tokens)) == (before, behind)
        assert decode(TOKENIZER, window.prefix.tokens + window.suffix.tokens) == together
        assert "\ufffd" not in together
        at = text.index(together, at) + len(together)


def test_a_text_task_is_hashed_whole_and_survives_a_file_of_rollouts(tmp_path: Path) -> None:
    text = {"id": "d", "text": " in" * 12}
    one, other = (
        excerpts_of(recipe(written(tmp_path / "t.jsonl", text), suffix_tokens=count), TOKENIZER).tasks[0]
        for count in (3, 4)
    )
    assert questions_hash([one]) != questions_hash([other])
    episode = Episode(task=one, sample=0, trajectories=(Trajectory(segments=()),))
    group = Group(task=one, episodes=(episode,))
    write_rollouts(tmp_path / "r.parquet", [group], [[None]])
    assert read_rollouts(tmp_path / "r.parquet") == [group]
