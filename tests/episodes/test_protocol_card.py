from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sleuth.dialect import DIALECTS, Tags
from sleuth.episodes.protocol import HISTORY, LARGEST, OwnCode, ProtocolCard, RewardPart, RewardSpec
from sleuth.search.dialects import CHAT
from sleuth.types import RetrieverIdentity, SleuthError


def test_a_card_comes_back_equal_with_the_prompts_bytes(tmp_path: Path, protocol: ProtocolCard) -> None:
    protocol.write(tmp_path)
    read = ProtocolCard.read(tmp_path)
    assert read == protocol
    assert read is not None
    assert read.prompt_text.encode() == protocol.prompt_text.encode()
    assert read.hash == protocol.hash


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_travels_on_a_card(tmp_path: Path, protocol: ProtocolCard, name: str) -> None:
    card = protocol.model_copy(
        update={"dialect": DIALECTS[name], "prompt_role": "user", "template_flags": {"enable_thinking": False}}
    )
    card.write(tmp_path)
    assert ProtocolCard.read(tmp_path) == card


OF_THE_CARD = {
    "prompt": "other",
    "prompt_text": "Other. {question}",
    "ask_with": "prompt",
    "prompt_role": "system",
    "template_flags": {"enable_thinking": False},
    "template_sha256": "cd" * 32,
    "context": 513,
    "forced_search": True,
    "closed_book": True,
    "scorer": "loose",
    "corpus_sha256": None,
    "retriever": RetrieverIdentity(kind="bm25", k1=1.2, b=0.75),
    "env": OwnCode(functions=("my_env:Env",), sources={"my_env.py": "5f" * 32}),
}
OF_THE_DIALECT = {
    "name": "other",
    "think": Tags(open="<t>", close="</think>"),
    "search": Tags(open="<search>", close="</s>"),
    "information": Tags(open="<i>", close="</information>"),
    "answer": Tags(open="<a>", close="</answer>"),
    "stops": ("</answer>",),
    "action": "(?P<kind>search)(?P<text>x)",
    "passage": "[{rank}] {title} {text}",
    "before_results": "",
    "margin": " ",
    "after_results": "",
    "hint": "Once more.",
    "hints": 2,
    "top_k": 5,
    "searches": 9,
    "turn_tokens": 65,
    "passage_tokens": 161,
    "results_tokens": 500,
    "frame": "conversation",
    "tool": CHAT.tool,
    "answer_inner": "(?P<text>x)",
    "answer_form": "({text})",
    "between": "",
    "between_queries": "",
    "results_key": "result",
    "question_again": "<question>",
    "sentences_of": 3,
    "turns": 2,
    "response_tokens": 500,
    "cut_ends": True,
}


@pytest.mark.parametrize("key", OF_THE_CARD)
def test_any_change_of_the_protocol_changes_its_hash(protocol: ProtocolCard, key: str) -> None:
    assert protocol.model_copy(update={key: OF_THE_CARD[key]}).hash != protocol.hash


@pytest.mark.parametrize("key", OF_THE_DIALECT)
def test_any_change_of_the_dialect_changes_the_hash_of_the_protocol(protocol: ProtocolCard, key: str) -> None:
    changed = dataclasses.replace(protocol.dialect, **{key: OF_THE_DIALECT[key]})
    assert protocol.model_copy(update={"dialect": changed}).hash != protocol.hash


def test_a_card_says_what_is_known_of_its_retriever_and_one_of_before_says_nothing(
    protocol: ProtocolCard, tmp_path: Path
) -> None:
    assert "retriever" not in protocol.model_dump(mode="json")
    assert protocol.retriever_is_unknown
    searched = protocol.model_copy(update={"retriever": RetrieverIdentity(kind="bm25", k1=1.2, b=0.75)})
    searched.write(tmp_path)
    assert ProtocolCard.read(tmp_path) == searched
    assert json.loads((tmp_path / "protocol.json").read_text())["retriever"] == {"kind": "bm25", "k1": 1.2, "b": 0.75}
    assert not searched.retriever_is_unknown
    assert not protocol.model_copy(update={"corpus_sha256": None}).retriever_is_unknown  # it never searched


def test_a_card_of_before_sentences_were_shown_shows_passages(protocol: ProtocolCard, tmp_path: Path) -> None:
    written = protocol.model_dump(mode="json")
    assert written["dialect"].pop("sentences_of") is None
    (tmp_path / "protocol.json").write_text(json.dumps(written), encoding="utf-8")
    assert ProtocolCard.read(tmp_path) == protocol


def test_where_a_checkpoint_comes_from_does_not_change_the_hash(protocol: ProtocolCard) -> None:
    part = RewardPart(kind="answer", scorer="strict", scorer_version=1, weight=2.0)
    loss = OwnCode(functions=("my_losses:mine",), sources={"my_losses.py": "5f" * 32})
    reward = RewardSpec(parts=(part,))
    history = {"sleuth_version": "9.9.9", "reward": reward, "loss": loss, "questions_sha256": "5f1c"}
    assert history.keys() == HISTORY
    assert protocol.model_copy(update=history).hash == protocol.hash


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prompt_text": "Answer.  {question}"}, "prompt_text is not the text that prompt_sha256 was taken of"),
        ({"context": "3"}, "context: Input should be a valid integer"),
        ({"context": 0}, "context: Input should be greater than 0"),
        ({"dialect": "sleuth"}, "dialect: Input should be an object"),
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


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"top_k": "3"}, "dialect.top_k: Input should be a valid integer"),
        ({"extra": 1}, "dialect.extra: Unexpected keyword argument"),
        (
            {"action": "("},
            "dialect: action is not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        ({"action": "a"}, "dialect: action has no groups (?P<kind>...) and (?P<text>...)"),
        ({"answer_inner": "a"}, "dialect: answer_inner has no group (?P<text>...)"),
        (
            {"frame": "conversation", "question_again": "<q>"},
            "dialect: question_again = '<q>' needs frame = \"text\"",
        ),
        ({"answer_form": "{answer}"}, "dialect: answer_form = '{answer}' is not a format of text"),
        ({"passage": "{body}"}, "dialect: passage = '{body}' is not a format of rank, title and text"),
        ({"passage": "{rank:>9}"}, "dialect: passage = '{rank:>9}' is not a format of rank, title and text"),
        ({"passage": "{text.real}"}, "dialect: passage = '{text.real}' is not a format of rank, title and text"),
        ({"turn_tokens": -5}, "dialect: turn_tokens = -5: should be a number from 1 to 2147483647"),
        ({"searches": -1}, "dialect: searches = -1: should be a number from 0 to 2147483647"),
        ({"top_k": 10**12}, "dialect: top_k = 1000000000000: should be a number from 1 to 2147483647"),
        (
            {"search": {"open": "", "close": ""}},
            "dialect: search has an empty tag: name both tags, such as <search> and </search>",
        ),
        ({"stops": [""]}, "dialect: stops has an empty text: remove it"),
        ({"action": "a" * 4001}, "dialect: action has 4,001 characters: should have at most 4,000"),
    ],
)
def test_a_dialect_that_cannot_be_spoken_is_refused(
    tmp_path: Path, protocol: ProtocolCard, change: dict[str, object], complaint: str
) -> None:
    edited = protocol.model_dump(mode="json")
    edited["dialect"] |= change
    (tmp_path / "protocol.json").write_text(json.dumps(edited), encoding="utf-8")
    with pytest.raises(SleuthError) as caught:
        ProtocolCard.read(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'protocol.json'}: {complaint}"


def test_a_card_of_many_megabytes_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "protocol.json").write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(SleuthError, match=r"protocol\.json: 4,194,305 bytes: a protocol has at most 4,194,304$"):
        ProtocolCard.read(tmp_path)


def test_a_torn_card_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "protocol.json").write_text('{"dialect"', encoding="utf-8")
    with pytest.raises(SleuthError, match=r"protocol\.json: [^\n]*$"):
        ProtocolCard.read(tmp_path)
