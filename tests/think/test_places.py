"""Positions to think at: the first with enough text on both sides, with earlier thoughts and without later ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.data.documents import part_of
from sleuth.render import Renderer, load_tokenizer
from sleuth.think.tables import PlacesRecipe
from sleuth.think.thoughts import spots_of, thought_tokens
from sleuth.types import Piece, SleuthError

TOKENIZER = load_tokenizer(str(Path(__file__).parents[2] / "models" / "tiny-base"))
TEXT = " Ada was born in Tarn. Tarn is in Osmark. So Ada is from Osmark. It rains."
THOUGHTS = {22: " where is it", 41: " Tarn is in Osmark", 64: " weather"}


def places(folder: Path, **changes: object) -> list:
    file = folder / "texts.jsonl"
    thoughts = [{"at": at, "text": text} for at, text in THOUGHTS.items()]
    file.write_text(json.dumps({"id": "d", "text": TEXT, "thoughts": thoughts, "golden_answers": ["Osmark"]}) + "\n")
    return spots_of(PlacesRecipe.model_validate({"kind": "places", "texts": file, **changes}), TOKENIZER)


def tokens(text: str) -> tuple[int, ...]:
    return Renderer(TOKENIZER).render(Piece(text=text)).tokens


def test_the_prefix_keeps_earlier_thoughts_and_the_suffix_has_none(tmp_path: Path) -> None:
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
    assert (spot.task.reference, spot.task.golden_answers) == (TEXT[41:], ("Osmark",))


def test_a_judge_sees_the_prefix_without_thoughts(tmp_path: Path) -> None:
    [spot] = places(tmp_path, least_before=len(tokens(TEXT[:22])) + 1)
    assert spot.task.question == TEXT[:41]


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
