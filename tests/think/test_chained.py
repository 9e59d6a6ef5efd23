"""The endings of chained texts follow from their sentences, with the entropies that the card states."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from sleuth.data.documents import read_documents
from sleuth.render import load_tokenizer
from sleuth.think.world_chained import CHAINS, INFERENCES, ChainedText, ChainedTexts, entropies
from sleuth.think.world_endings import ENDINGS, THOUGHTS
from sleuth.think.world_files import TEXTS
from sleuth.world.names import SPLITS, Split, split_of
from sleuth.world.wording import PASSAGES
from sleuth.world.write_world import CARD, write_world

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
FORMS = {
    "life": ("person", "birthplace", "birthplace"),
    "career": ("person", "employer", "employer"),
    "work": ("work", "author", "author"),
    "firm": ("firm", "seat", "seat"),
    "town": ("town", "region", "region"),
}
"""Form of passage -> the slot of its subject, its relation and the slot of its value."""
SLOT = r"(?P<{}>[A-Z0-9][\w]*(?: (?:of )?[A-Z]\w*)*|[a-z]+)"


def texts(split: Split, count: int = 300) -> list[ChainedText]:
    drawn = ChainedTexts(2000, split, (0,))
    return [drawn.text(index) for index in range(count)]


def facts_in(beginning: str) -> dict[tuple[str, str], str]:
    """(subject, relation) -> value of every sentence, parsed with the wordings of passages."""
    facts = {}
    for form, (about, says, relation) in FORMS.items():
        for wording in PASSAGES[form]:
            pattern = re.sub(r"\\{(\w+)\\}", lambda slot: SLOT.format(slot[1]), re.escape(wording))
            for sentence in re.findall(r" [^.]+\.", beginning):
                if (found := re.fullmatch(pattern, sentence[1:])) is not None:
                    facts[found[about], relation] = found[says]
    return facts


@pytest.mark.parametrize("split", SPLITS)
def test_the_ending_follows_from_the_sentences_alone(split: Split) -> None:
    for text in texts(split):
        facts = facts_in(text.beginning)
        assert len(facts) == CHAINS * len(text.hops)
        about = text.hops[0].subject
        for hop in text.hops:
            assert hop.subject == about
            about = facts[about, hop.relation]
        assert text.ending == f" {about}."
        assert text.answer == about


def test_no_single_sentence_contains_the_answer() -> None:
    for text in texts("train"):
        *sentences, last = re.findall(r" [^.]+\.| [^.]+$", text.beginning)
        assert text.hops[0].subject in last
        assert not [sentence for sentence in sentences if text.hops[0].subject in sentence and text.answer in sentence]


def test_half_of_the_texts_need_two_inferences() -> None:
    kinds = Counter(text.kind for text in texts("train"))
    assert kinds == {"one_inference": 150, "two_inferences": 150}


def test_without_inference_all_candidates_are_equally_likely_in_any_order() -> None:
    places: Counter[int] = Counter()
    drawn = texts("train", 1500)
    for text in drawn:
        relation = text.hops[-1].relation
        stated = {value for (_, of), value in facts_in(text.beginning).items() if of == relation}
        assert len(stated) == CHAINS
        places[sorted(stated, key=text.beginning.index).index(text.answer)] += 1
    for place in range(CHAINS):
        assert places[place] / len(drawn) == pytest.approx(1 / CHAINS, abs=0.05)
    assert entropies(1)["ending_not_inferred"] == pytest.approx(math.log(3))


def test_a_thought_states_the_facts_in_order_in_random_wordings() -> None:
    chosen: Counter[int] = Counter()
    for text in texts("train", 1000):
        rest = text.thought
        for number, hop in enumerate(text.hops):
            rest = rest.removeprefix(" and") if number else rest
            ways = [way.format(subject=hop.subject, value=hop.value) for way in THOUGHTS[hop.relation]]
            [way] = [at for at, words in enumerate(ways) if rest.startswith(words)]
            rest = rest.removeprefix(ways[way])
            chosen[way] += 1
        assert rest == ""
    assert all(share / chosen.total() == pytest.approx(0.25, abs=0.03) for share in chosen.values())
    assert entropies(2)["thought"] == pytest.approx(3 * math.log(4))
    assert all(len(set(ways)) == 4 for ways in THOUGHTS.values())


def test_the_splits_share_no_name_and_no_wording() -> None:
    for split in SPLITS:
        for text in texts(split):
            named = {text.hops[0].subject, *(hop.value for hop in text.hops if hop.relation in ("employer", "author"))}
            assert {split_of(name) for name in named} == {split}
    assert all(
        set(ENDINGS["train"][path]).isdisjoint(ENDINGS["test"][path]) and ENDINGS["test"][path]
        for path in ENDINGS["train"]
    )


def test_every_word_of_a_text_and_of_a_thought_is_a_token_of_the_shipped_base() -> None:
    tokenizer = load_tokenizer(str(BASE))
    words = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    for text in (*texts("train"), *texts("test")):
        for written in (text.text, text.thought):
            assert len(tokenizer.encode(written)) == len(words(written)), written


def test_a_text_depends_only_on_key_and_index() -> None:
    one, same, other = (ChainedTexts(2000, "train", key) for key in ((1,), (1,), (2,)))
    forwards = [one.text(index) for index in range(12)]
    assert [same.text(index) for index in reversed(range(12))][::-1] == forwards
    assert all(mine != theirs for mine, theirs in zip(forwards, map(other.text, range(12)), strict=True))
    assert all(before.text != behind.text for before, behind in pairwise(forwards))


def test_a_world_contains_chained_texts_and_its_card_has_their_entropies(tmp_path: Path) -> None:
    write_world(tmp_path, seed=0, people=200)
    for split, count in (("train", 800), ("test", 100)):
        documents = list(read_documents(tmp_path / TEXTS[split]))
        assert len(documents) == count
        for document in documents:
            [thought] = document.thoughts
            assert document.text[document.cut :] == f" {document.golden_answers[0]}."
            assert thought.at == document.cut
    card = json.loads((tmp_path / CARD).read_text())
    assert card["nats"] == {kind: dict(entropies(inferences)) for inferences, kind in INFERENCES.items()}
    assert card["rows"]["text_train.jsonl"] == 800
