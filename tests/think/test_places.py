"""Documents with thoughts as rows to train, and the positions in them to think at."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuations import BASE, write_rows

from sleuth.data.documents import part_of
from sleuth.render import Renderer, decode, load_tokenizer
from sleuth.think.tables import HeldOutThoughtsRecipe, PlacesRecipe
from sleuth.think.thought_rows import positions_in
from sleuth.think.thoughts import interleaved, require_apart, spots_of, thought_documents, thought_tokens
from sleuth.types import Document, Piece, SleuthError, Thought

TOKENIZER = load_tokenizer(str(BASE))
TEXT = " Ada was born in Tarn. Tarn is in Osmark. So Ada is from Osmark. It rains."
THOUGHTS = {22: " where is it", 41: " Tarn is in Osmark", 64: " weather"}


def places(folder: Path, **changes: object) -> list:
    thoughts = [{"at": at, "text": text} for at, text in THOUGHTS.items()]
    row = {"id": "d", "text": TEXT, "thoughts": thoughts, "golden_answers": ["Osmark"]}
    file = write_rows(folder / "texts.jsonl", [row])
    return spots_of(PlacesRecipe.model_validate({"kind": "places", "texts": file, **changes}), TOKENIZER)


def tokens(text: str) -> tuple[int, ...]:
    return Renderer(TOKENIZER).render(Piece(text=text)).tokens


def test_the_prefix_keeps_earlier_thoughts_the_suffix_has_none_and_a_judge_sees_neither(tmp_path: Path) -> None:
    [spot] = places(tmp_path, least_before=len(tokens(TEXT[:22])) + 1)
    assert spot.teacher == THOUGHTS[41]
    continuation = spot.task.continuation
    assert continuation.prefix.tokens == (
        *tokens(TEXT[:22]),
        *thought_tokens(THOUGHTS[22], Renderer(TOKENIZER)),
        *tokens(TEXT[22:41]),
    )
    assert continuation.prefix.text == f"{TEXT[:22]}<think>{THOUGHTS[22]}</think>{TEXT[22:41]}"
    assert continuation.suffix.tokens == tokens(TEXT[41:])
    assert (spot.task.question, spot.task.reference) == (TEXT[:41], TEXT[41:])
    assert spot.task.golden_answers == ("Osmark",)


def test_the_first_position_with_enough_text_on_both_sides_is_used_and_cut_to_its_tokens(tmp_path: Path) -> None:
    [first] = places(tmp_path)
    assert first.teacher == THOUGHTS[22]
    [short] = places(tmp_path, prefix_tokens=3, suffix_tokens=2)
    assert short.task.continuation.prefix.tokens == tokens(TEXT[:22])[-3:]
    assert short.task.continuation.suffix.tokens == tokens(TEXT[22:])[:2]


def test_a_part_contains_only_documents_of_its_origins(tmp_path: Path) -> None:
    own = part_of("d")
    assert len(places(tmp_path, part=own)) == 1
    for other in {"sft", "rl", "held_out"} - {own}:
        with pytest.raises(SleuthError, match="no document of the part"):
            places(tmp_path, part=other)


RENDERER = Renderer(TOKENIZER)
WRITTEN = (Thought(at=8, text=" in Osmark"), Thought(at=20, text=" region"))
DOCUMENT = Document(id="d", text=" was in Osmark. born in the region.", origin="d", thoughts=WRITTEN, kind="k")


def test_the_source_is_the_author_of_the_text_and_a_teacher_of_the_thoughts_with_their_tags() -> None:
    pieces = interleaved(DOCUMENT, RENDERER, 100)
    assert "".join(piece.text for piece in pieces if piece.author == "source") == DOCUMENT.text
    assert [piece.text for piece in pieces if piece.author == "teacher"] == [
        "<think> in Osmark</think>",
        "<think> region</think>",
    ]
    assert [piece.author for piece in pieces] == ["source", "teacher", "source", "teacher", "source"]
    segments = RENDERER.render_all(pieces)
    assert [decode(TOKENIZER, segment.tokens) for segment in segments] == [piece.text for piece in pieces]
    tag = TOKENIZER.convert_tokens_to_ids("<think>")
    assert [segment.tokens[0] for segment in segments if segment.author == "teacher"] == [tag, tag]


def test_a_row_ends_at_its_token_limit_without_cutting_a_thought() -> None:
    whole = [len(segment.tokens) for segment in RENDERER.render_all(interleaved(DOCUMENT, RENDERER, 100))]
    for most in range(1, sum(whole) + 1):
        segments = RENDERER.render_all(interleaved(DOCUMENT, RENDERER, most))
        assert sum(len(segment.tokens) for segment in segments) <= most
        for segment in segments:
            assert segment.author == "source" or segment.text.endswith("</think>")


def test_a_position_has_the_text_on_both_sides_without_any_thought() -> None:
    first, second = positions_in(DOCUMENT, RENDERER, suffix_tokens=3, context=64)
    assert decode(TOKENIZER, first.before) == DOCUMENT.text[:8]
    assert decode(TOKENIZER, second.before) == DOCUMENT.text[:20]
    assert DOCUMENT.text[20:].startswith(decode(TOKENIZER, second.behind))
    assert (len(second.behind), second.thought, second.kind) == (3, " region", "k")
    [near] = list(positions_in(DOCUMENT, RENDERER, suffix_tokens=3, context=10))[:1]
    assert len(near.before) + len(near.behind) + 4 <= 10


def test_documents_without_thoughts_or_with_tags_in_their_text_are_skipped(tmp_path: Path) -> None:
    thought = {"thoughts": [{"at": 1, "text": "so"}]}
    bare, tagged = {"id": "a", "text": "bare"}, {"id": "b", "text": "a <think> b"} | thought
    file = write_rows(tmp_path / "t.jsonl", [bare, tagged, {"id": "c", "text": "cc"} | thought])
    recipe = HeldOutThoughtsRecipe.model_validate({"texts": file})
    assert [document.id for document in thought_documents(recipe)] == ["c"]
    write_rows(file, [bare, tagged])
    with pytest.raises(SleuthError, match=r"no document has `thoughts`; a stage of kind = .annotate. adds"):
        thought_documents(recipe)


@pytest.mark.parametrize(("texts", "ids"), [([DOCUMENT.text + " "], set()), ([], {"d"})])
def test_a_held_out_text_in_the_training_data_is_refused(texts: list[str], ids: set[str]) -> None:
    require_apart(["another text"], [DOCUMENT])
    with pytest.raises(SleuthError, match="held_out: the text of 'd' is trained too"):
        require_apart(texts, [DOCUMENT], ids)
