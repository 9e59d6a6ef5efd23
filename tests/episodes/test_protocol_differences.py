"""Whatever differs between two protocols is printed, with its field and both values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sleuth.dialect import BUDGETS, Dialect, Tags
from sleuth.episodes.protocol import OwnCode, ProtocolCard, RewardPart, RewardSpec, text_sha256
from sleuth.episodes.protocol_differences import differences
from sleuth.types import RetrieverIdentity

ANSWER = RewardPart(kind="answer", scorer="strict", scorer_version=1, weight=1.0)
CITATION = RewardPart(kind="citation", scorer="lexical", scorer_version=3, weight=0.5)

IVF = RetrieverIdentity(
    kind="dense",
    encoder="e5-base-v2",
    weights_sha256="9f" * 32,
    query_prefix="query: ",
    passage_prefix="passage: ",
    pooling="mean",
    storage="ivf-sq8",
    lists=4096,
    probes=256,
)


@pytest.fixture
def card(protocol: ProtocolCard) -> ProtocolCard:
    added = {"reward": RewardSpec(parts=(ANSWER,)), "questions_sha256": "cd" * 32, "retriever": IVF}
    return protocol.model_copy(update=added)


def asked(card: ProtocolCard, prompt: str) -> ProtocolCard:
    return card.model_copy(update={"prompt_text": prompt, "prompt_sha256": text_sha256(prompt)})


def speaking(card: ProtocolCard, **changes: Any) -> ProtocolCard:
    return card.model_copy(update={"dialect": dataclasses.replace(card.dialect, **changes)})


def paid(card: ProtocolCard, *parts: RewardPart) -> ProtocolCard:
    return card.model_copy(update={"reward": RewardSpec(parts=parts)})


def other_than(value: Any) -> Any:
    """A value of the same kind that is not this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "(?:x)?"
        case Tags():
            return Tags(open=value.open, close=value.close + "!")
        case None:
            return "(?P<text>something)"
        case tuple():
            return (*value, value[0])
        case dict():
            return value | {"enable_thinking": False}
        case Dialect():
            return dataclasses.replace(value, top_k=value.top_k + 1)
        case RewardSpec() | RetrieverIdentity():
            return None
        case _:
            raise TypeError(f"{value!r}: say here what another value of this kind is")


# -- nothing is passed over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ProtocolCard.model_fields)
def test_a_change_of_any_field_of_the_card_is_said(card: ProtocolCard, field: str) -> None:
    said = differences(card, card.model_copy(update={field: other_than(getattr(card, field))}))
    assert len(said) == 1
    assert said[0].startswith(field)
    assert ": A " in said[0]
    assert ", B " in said[0]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Dialect)])
def test_a_change_of_any_field_of_the_dialect_is_said(card: ProtocolCard, field: str) -> None:
    limits = {*BUDGETS, "hints", "sentences_of"}
    other = 3 if field in limits and getattr(card.dialect, field) is None else other_than(getattr(card.dialect, field))
    changed = speaking(card, **{field: other})
    [said] = differences(card, changed)
    assert said.startswith(f"dialect.{field}")


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RetrieverIdentity)])
def test_a_change_of_any_field_of_the_retriever_is_said(card: ProtocolCard, field: str) -> None:
    changed = dataclasses.replace(IVF, **{field: other_than(getattr(IVF, field))})
    assert len(differences(card, card.model_copy(update={"retriever": changed}))) == 1


@pytest.mark.parametrize("field", RewardPart.model_fields)
def test_a_change_of_any_field_of_a_part_of_the_reward_is_said(card: ProtocolCard, field: str) -> None:
    changed = ANSWER.model_copy(update={field: other_than(getattr(ANSWER, field))})
    said = differences(card, paid(card, changed))
    assert len(said) == (2 if field == "kind" else 1)
    assert all(line.startswith("reward.answer") for line in said)


def test_a_changed_file_of_the_user_is_said_by_its_name(card: ProtocolCard) -> None:
    files = {"my_rewards.py": "5f1c02ab93de" + "0" * 52, "words.py": "ab" * 32}
    part = RewardPart(kind="python", scorer="my_rewards:brevity", scorer_version=1, weight=1.0, sources=files)
    other = part.model_copy(update={"sources": files | {"my_rewards.py": "cd" * 32}})
    assert differences(paid(card, part), paid(card, other)) == [
        "reward.python.sources.my_rewards.py: A 5f1c02ab93de, B cdcdcdcdcdcd"
    ]
    one, two = (
        card.model_copy(update={"env": OwnCode(functions=("my_env:Env",), sources={"my_env.py": sha256 * 32})})
        for sha256 in ("ab", "cd")
    )
    assert differences(one, two) == ["env.sources.my_env.py: A abababababab, B cdcdcdcdcdcd"]
    assert differences(card, one)[0].startswith("env: A none, B (functions `my_env:Env`")


# -- as shown --------------------------------------------------------------------------------------------------------


def test_the_same_protocol_has_no_differences(card: ProtocolCard) -> None:
    assert differences(card, ProtocolCard.model_validate_json(card.model_dump_json())) == []


def test_values_that_would_be_shown_alike_are_shown_as_they_are(card: ProtocolCard) -> None:
    said = differences(speaking(card, hint="a\nb"), speaking(card, hint="a\\nb"))
    assert said == [r"dialect.hint: A 'a\nb', B 'a\\nb'"]


def test_every_difference_is_a_field_with_both_values(card: ProtocolCard) -> None:
    tags = Tags(open="<tool_call>", close="</tool_call>")
    other = speaking(card, search=tags, stops=("</answer>",), hints=None, margin="", searches=1, passage_tokens=None)
    other = other.model_copy(update={"context": 1024, "forced_search": True, "corpus_sha256": None, "prompt": "mine"})
    assert differences(card, other) == [
        "dialect.search.open: A `<search>`, B `<tool_call>`",
        "dialect.search.close: A `</search>`, B `</tool_call>`",
        "dialect.stops: A `</search>` and `</answer>`, B `</answer>`",
        r"dialect.margin: A `\n`, B nothing",
        "dialect.hints: A 1, B none",
        "dialect.searches: A 3, B 1",
        "dialect.passage_tokens: A 160, B none",
        "prompt: A `plain`, B `mine`",
        "context: A 512, B 1024",
        "forced_search: A no, B yes",
        "corpus_sha256: A abababababab, B none",
    ]


def test_prompts_are_shown_where_they_first_differ_with_their_white_space(card: ProtocolCard) -> None:
    story = "Answer the question with what you find.\nSearch as often as you need."
    said = differences(asked(card, f"{story} \n{{question}}\n"), asked(card, f"{story}\n{{question}}\n"))
    assert said == [
        r"prompt_text: A `...s often as you need.·\n{question}\n`, "
        r"B `...s often as you need.\n{question}\n` (they first differ in line 2, character 29)"
    ]


def test_rewards_differ_by_their_parts_wherever_these_stand(card: ProtocolCard) -> None:
    heavy = ANSWER.model_copy(update={"weight": 2.0, "scorer": "loose", "scorer_version": 2, "shuffle": True})
    assert differences(paid(card, ANSWER), paid(card, CITATION, heavy)) == [
        "reward.answer.scorer: A `strict`, B `loose`",
        "reward.answer.scorer_version: A 1, B 2",
        "reward.answer.weight: A 1.0, B 2.0",
        "reward.answer.shuffle: A no, B yes",
        "reward.citation: A none, B (kind `citation`, scorer `lexical`, scorer_version 3, weight 0.5, shuffle no)",
    ]


def test_a_checkpoint_that_was_trained_for_no_reward_is_told_from_one_that_was(card: ProtocolCard) -> None:
    [said] = differences(card.model_copy(update={"reward": None}), card)
    assert said.startswith("reward: A none, B (aggregation `sum`, parts (kind")


def test_the_hash_of_a_prompt_is_not_said_beside_its_text(card: ProtocolCard) -> None:
    assert len(differences(card, asked(card, "Other. {question}"))) == 1
