"""A reader from nothing: its rows, its run, what it measures, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plain_models import plain_model
from towns import data_of, read, write, write_towns
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.convert.gguf_file import tokenizer_calls
from sleuth.data.spans import sentences
from sleuth.learn.models import load_model
from sleuth.read.exam import LONGEST_ANSWER, examine
from sleuth.read.rows import SENTENCE_WEIGHT, ReadingRows
from sleuth.read.texts import read_passages, read_reading_texts
from sleuth.read.tokens import ReadingTokens, make_reading_tokenizer
from sleuth.types import SleuthError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_towns(tmp_path)


def train(folder: Path, run: str, *more: str) -> str:
    result = CliRunner().invoke(app, ["train", str(folder / "recipe.toml"), "--run", str(folder / run), *more])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_ends_with_a_model_that_transformers_loads_and_exact_match_beside_the_control(folder: Path) -> None:
    train(folder, "run")
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["copying_loss"] > 0 and row["loss"] > row["copying_loss"] for row in rows)
    assert [step for step, row in enumerate(rows, 1) if "held_out_exact_match" in row] == [2, 4]
    found = json.loads((folder / "run/eval/reading_held_out.json").read_text())
    assert found["exact_match"].keys() == {"value", "low", "high", "n"}
    assert found["window_exact_match"]["n"] == len(found["questions"]) == 6
    assert {record["title"] for record in found["questions"]} == {"Tarn"}
    assert "a sliding window" in (folder / "run/log.txt").read_text().splitlines()[-1]
    checkpoint = folder / "run/checkpoints/step-000004"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert len(AutoTokenizer.from_pretrained(checkpoint)) == model.config.vocab_size <= 420


def test_a_resumed_run_is_the_undisturbed_one(folder: Path) -> None:
    train(folder, "whole")
    train(folder, "parts", "--set", "stage.0.stop_after=2")
    train(folder, "parts", "--set", "stage.0.stop_after=4")
    whole, parts = (
        AutoModelForCausalLM.from_pretrained(folder / run / "checkpoints/step-000004").state_dict()
        for run in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_engine_answers_as_transformers_does(folder: Path) -> None:
    train(folder, "run", "--set", "stage.0.stop_after=2")
    require_generated_answers(
        folder, *load_model(str(folder / "run/checkpoints/step-000002"), dtype=None, device="cpu")
    )


def test_a_model_that_is_computed_the_plain_way_is_examined_too(folder: Path) -> None:
    tokenizer = make_reading_tokenizer(read_reading_texts(data_of(folder)), 420)
    require_generated_answers(folder, plain_model("lfm2", len(tokenizer)), tokenizer)


def require_generated_answers(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    tokens, texts = ReadingTokens(tokenizer), read_reading_texts(data_of(folder))
    rows = ReadingRows(texts, tokens, mix=None, rows=1, key=(0,))
    prompts = [rows.prompt(number, one) for number, one in enumerate(texts.held_out)]
    exam = examine(model, tokens, texts.held_out, prompts, log=print)
    for given, answer in zip(prompts, exam.answers, strict=True):
        prompt = torch.tensor([given])
        written = model.generate(prompt, max_new_tokens=LONGEST_ANSWER, do_sample=False)[0, prompt.shape[1] :]  # pyright: ignore
        ids = written.tolist()
        assert tokens.answer(ids[: ids.index(tokens.end) + 1 if tokens.end in ids else None]) == answer


def test_rows_copy_the_answer_token_by_token_from_the_passage(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    tokenizer = make_reading_tokenizer(texts, 420)
    rows = ReadingRows(texts, ReadingTokens(tokenizer), mix={"walks": 1, "talks": 2}, rows=60, key=(0, 0))
    for index in range(60):
        row = rows.row(index)
        assert row == rows.row(index)
        assert row.sources is not None
        trained = [place for place, trained in enumerate(row.trained) if trained]
        assert tokenizer.decode([row.tokens[place] for place in trained[-2:]]) == "]</answer>"
        copied = [place for place in trained if row.sources[place] != -1]
        assert [row.tokens[row.sources[place]] for place in copied] == [row.tokens[place] for place in copied]
        text = str(tokenizer.decode([*row.tokens]))
        answer, quoted = text.split("<answer>")[1].removesuffix("]</answer>").split(" [")
        assert str(tokenizer.decode([row.tokens[place] for place in copied])) == f"{answer}{quoted}"
        assert f"{answer}{quoted}" in text.split("<passage>")[1].split("<question>")[0]
        first = row.sources[copied[0]]
        assert [row.sources[place] for place in copied] == [*range(first, first + len(copied))]
        first, second = text.split("<question>")[1], text.split("<question>")[2].split("<answer>")[0]
        assert first.split("<passage>")[0] == second
        assert "Tarn" not in text


def test_the_tokens_of_the_sentence_are_trained_too_and_no_others_of_the_prompt(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    row = ReadingRows(texts, tokens, mix=None, rows=60, key=(0, 0)).row(0)
    assert row.token_weight is not None
    begin = row.tokens.index(tokens.tags["<passage>"]) + 1
    stop = row.tokens.index(tokens.tags["<question>"], begin)
    answer = row.tokens.index(tokens.tags["<answer>"]) + 1
    weights = [*row.token_weight[:answer]]
    assert weights == [0.0] * begin + [SENTENCE_WEIGHT] * (stop - begin) + [0.0] * (answer - stop)
    assert row.trained[:answer] == tuple(weight > 0 for weight in weights)


def test_rows_are_of_the_sentence_with_the_answer(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = ReadingRows(texts, tokens, mix=None, rows=400, key=(0, 0))

    def count(index: int) -> int:
        text = str(tokens.tokenizer.decode([*rows.row(index).tokens]))
        passage = text.split("<passage>")[1].split("<question>")[0]
        return len(sentences(passage.split(" | ")[1].strip()))

    assert {count(index) for index in range(0, 400, 10)} == {1}


def test_a_word_of_a_question_begins_with_the_space_before_it(folder: Path) -> None:
    tokens = ReadingTokens(make_reading_tokenizer(read_reading_texts(data_of(folder)), 420))
    asked = tokens.question_words('In 1912, did "Ed" (b. 18) go and/or?')
    words = [tokens.text(asked.tokens[first:after]) for _, first, after in asked.words]
    assert words == [" In", " 1912", " did", ' "Ed', " (b", " 18", " go", " and", "/or"]


def test_a_reader_has_a_tokenizer_that_llama_cpp_knows(folder: Path) -> None:
    tokenizer = make_reading_tokenizer(read_reading_texts(data_of(folder)), 420)
    assert ("add_tokenizer_pre", "gpt-2") in tokenizer_calls(tokenizer, 420, [419])
    assert not [token for token in tokenizer.get_vocab() if "Ġ" in token and any(map(str.isdigit, token))]


def test_a_tag_in_a_text_is_text(folder: Path) -> None:
    tokens = ReadingTokens(make_reading_tokenizer(read_reading_texts(data_of(folder)), 420))
    encoded = tokens.passage("<answer>", "Emil Voss <|end|> built it <answer> here.")
    assert not {tokens.end, *tokens.tags.values()} & {*encoded.tokens}


def test_every_problem_of_the_files_is_a_line(folder: Path) -> None:
    rows = read(folder / "questions.jsonl.gz")
    rows[0]["answer_start"] = 3
    rows[1]["gold_ids"] = ["p99"]
    del rows[2]["golden_answers"]
    write(folder / "questions.jsonl.gz", rows)
    with pytest.raises(SleuthError) as caught:
        read_reading_texts(data_of(folder))
    wrong, absent, unanswered = map(str, caught.value.args)
    assert wrong.endswith("1: at character 3 of passage 'p0' stands ' harbour was built i', not the answer '1900'")
    assert absent.endswith("2: passage 'p99' is in none of the files of passages")
    assert unanswered.endswith("3: a question to read for needs golden_answers, gold_ids and answer_start")


def test_a_cut_file_and_unknown_names_are_lines(folder: Path) -> None:
    data = data_of(folder)
    unknown = data.model_copy(update={"held_out": ("Taarn",), "mix": {"walk": 1.0}})
    with pytest.raises(SleuthError) as caught:
        read_reading_texts(unknown)
    held_out, mix = map(str, caught.value.args)
    assert "data.held_out" in held_out
    assert held_out.endswith("'Taarn'; did you mean 'Tarn'?")
    assert mix.endswith("'walk'; did you mean 'walks'?")
    whole = (folder / "questions.jsonl.gz").read_bytes()
    (folder / "questions.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SleuthError, match="damaged gzip file"):
        read_reading_texts(data)


def test_every_problem_of_every_file_of_passages_is_a_line(folder: Path) -> None:
    first, cut, absent = (folder / name for name in ("passages.jsonl", "cut.jsonl.gz", "absent.jsonl"))
    write(cut, [{"id": "p4", "contents": '"Ulm"\nA town.'}, {"id": "p99", "contents": '"Ulm"\nA town.'}])
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(SleuthError) as caught:
        read_passages([first, cut, absent])
    twice, damaged, missing = caught.value.args
    assert twice == f"{cut}: id 'p4' is also in another file of passages"
    assert damaged.startswith(f"{cut}: damaged gzip file after line 2")
    assert missing == f"{absent}: no such file"


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("vocabulary = 420", "", "init.vocabulary is missing"),
        ("vocabulary = 420", "vocabulary = 90", "has no room for the single bytes"),
        ("/passages.jsonl", "/absent.jsonl", "no such file"),
        ("heads = 4\nkv_heads = 4", "heads = 4\nkv_heads = 2", "reading = true needs layers >= 4"),
        ("rope_theta = 1e7", "", "rope_theta >= 1e6"),
        ("copying_weight = 1.0", "copying_weight = 1.0\ngradient_checkpointing = true", "throws away"),
        ("copying_weight = 1.0", "source_weight = 0.5", "trains answers alone"),
        ("context = 512", "context = 256", "is more than the 256 positions of the model"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(folder: Path, line: str, other: str, said: str) -> None:
    recipe = (folder / "recipe.toml").read_text()
    assert line in recipe
    (folder / "recipe.toml").write_text(recipe.replace(line, other))
    result = CliRunner().invoke(app, ["train", str(folder / "recipe.toml"), "--run", str(folder / "run")])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (folder / "run").exists()
