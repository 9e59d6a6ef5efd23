from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleuth.runs.protocol import ProtocolCard
from sleuth.types import SleuthError


def test_a_card_comes_back_equal_with_the_prompts_bytes(tmp_path: Path, protocol: ProtocolCard) -> None:
    protocol.write(tmp_path)
    read = ProtocolCard.read(tmp_path)
    assert read == protocol
    assert read is not None
    assert read.prompt_text.encode() == protocol.prompt_text.encode()
    assert read.hash == protocol.hash


def test_a_model_without_a_card_has_none(tmp_path: Path) -> None:
    assert ProtocolCard.read(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [{"top_k": 5}, {"turn_tokens": 64}, {"stops": ("</answer>",)}, {"scorer": "loose"}, {"corpus_sha256": None}],
)
def test_any_change_of_the_protocol_changes_its_hash(protocol: ProtocolCard, change: dict[str, object]) -> None:
    assert protocol.model_copy(update=change).hash != protocol.hash


def test_a_new_version_of_sleuth_does_not_change_the_hash(protocol: ProtocolCard) -> None:
    assert protocol.model_copy(update={"sleuth_version": "9.9.9"}).hash == protocol.hash


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prompt_text": "Answer.  {question}"}, "prompt_text is not the text that prompt_sha256 was taken of"),
        ({"top_k": "3"}, "top_k: Input should be a valid integer"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_a_card_that_was_edited_by_hand_is_refused(
    tmp_path: Path, protocol: ProtocolCard, change: dict[str, object], complaint: str
) -> None:
    edited = protocol.model_dump(mode="json") | change
    (tmp_path / "protocol.json").write_text(json.dumps(edited), encoding="utf-8")
    with pytest.raises(SleuthError) as caught:
        ProtocolCard.read(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'protocol.json'}: {complaint}"


def test_a_torn_card_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "protocol.json").write_text('{"dialect"', encoding="utf-8")
    with pytest.raises(SleuthError, match=r"protocol\.json: [^\n]*$"):
        ProtocolCard.read(tmp_path)
