"""A cross-encoder with random weights: what counts is how it is asked, not what it knows."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from sleuth.judges.nli import OVERLAP, NliJudge, entailment_label
from sleuth.types import Case, SleuthError, Verdict

WORDS = [f"w{number}" for number in range(300)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
POSITIONS = 130
LABELS = {0: "contradiction", 1: "Entailment", 2: "neutral"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross-encoder")
    return saved(folder, LABELS)


def saved(folder: Path, labels: dict[int, str]) -> Path:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=POSITIONS,
        id2label=labels,
        label2id={label: number for number, label in labels.items()},
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def judged(judge: NliJudge, *cases: Case) -> list[Verdict]:
    return asyncio.run(judge.judge(cases))


def probability(folder: Path, evidence: list[int], claim: list[int]) -> float:
    """Straight from the model: classes 0 to 2, of which entailment is 1."""
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    first, second = ([number + len(SPECIAL) for number in side] for side in (evidence, claim))
    ids = torch.tensor([[2, *first, 3, *second, 3]])
    kinds = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
    with torch.no_grad():
        return float(model(input_ids=ids, token_type_ids=kinds).logits[0].softmax(-1)[1])


def test_the_score_is_the_probability_of_entailment_evidence_first(folder: Path) -> None:
    [verdict] = judged(NliJudge(str(folder)), Case(claim=words(7, 8), evidence=words(1, 2, 3)))
    assert verdict.score == pytest.approx(probability(folder, [1, 2, 3], [7, 8]), abs=1e-6)
    assert verdict.score != pytest.approx(probability(folder, [7, 8], [1, 2, 3]), abs=1e-3)
    assert verdict.evidence == words(1, 2, 3)


def test_a_score_does_not_depend_on_what_else_is_asked(folder: Path) -> None:
    judge = NliJudge(str(folder))
    one, other = Case(claim=words(5), evidence=words(6)), Case(claim=words(*range(40)), evidence=words(*range(50)))
    assert judged(judge, one, other)[0] == judged(judge, other, one)[1] == judged(judge, one)[0]


def test_of_long_evidence_every_word_is_read_and_the_best_window_counts(folder: Path) -> None:
    judge, claim = NliJudge(str(folder)), [299, 298]
    evidence = [*range(290)]
    windows = [[*map(int, text.replace("w", "").split())] for text in judge._windows(words(*claim), words(*evidence))]
    assert {number for window in windows for number in window} == {*evidence}
    assert all(len(set(a) & set(b)) == OVERLAP for a, b in pairwise(windows))
    [verdict] = judged(judge, Case(claim=words(*claim), evidence=words(*evidence)))
    scores = [probability(folder, window, claim) for window in windows]
    assert verdict.score == pytest.approx(max(scores), abs=1e-6)
    assert verdict.evidence == words(*windows[scores.index(max(scores))])


def test_what_it_cannot_judge_is_missing_and_not_zero(folder: Path) -> None:
    judge = NliJudge(str(folder))
    [too_long] = judged(judge, Case(claim=words(*range(100)), evidence=words(*range(290))))
    assert too_long.score is None
    assert "no room" in too_long.reason


def test_a_criterion_is_a_statement_that_the_answer_should_entail(folder: Path) -> None:
    [verdict] = judged(NliJudge(str(folder)), Case(claim="<b>w1 w2</b>", evidence="w9", criterion=words(7)))
    assert verdict.score == pytest.approx(probability(folder, [1, 2], [7]), abs=1e-6)


def test_an_empty_claim_and_an_empty_evidence_support_nothing(folder: Path) -> None:
    verdicts = judged(NliJudge(str(folder)), Case(claim=" ", evidence="w1"), Case(claim="w1", evidence=""))
    assert [verdict.score for verdict in verdicts] == [0.0, 0.0]


def test_the_label_that_means_entailment_is_read_and_never_guessed(folder: Path, tmp_path: Path) -> None:
    assert entailment_label({0: "entailment", 1: "not_entailment"}, "m") == 0
    with pytest.raises(SleuthError, match=r"its labels are LABEL_0, LABEL_1, and not exactly one of them is"):
        NliJudge(str(saved(tmp_path, {0: "LABEL_0", 1: "LABEL_1"})))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SleuthError, match="no cross-encoder could be loaded from this folder or hub id"):
        NliJudge(str(tmp_path / "nothing"))


def test_other_weights_are_another_judge(folder: Path, tmp_path: Path) -> None:
    other = saved(tmp_path, LABELS)
    model = BertForSequenceClassification.from_pretrained(other)
    with torch.no_grad():
        model.classifier.bias += 1
    model.save_pretrained(other)
    hashes = [NliJudge(str(place)).identity.split()[-1] for place in (folder, folder, other)]
    assert hashes[0] == hashes[1] != hashes[2]
