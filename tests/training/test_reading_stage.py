"""A reader from nothing: its rows, its run, what it measures, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from typer.testing import CliRunner

from sleuth.cli.app import app
from sleuth.data.spans import sentences
from sleuth.dialects.reading import READING
from sleuth.engines.scripted import ScriptedEngine
from sleuth.envs.frames import frame_of
from sleuth.envs.search import SearchEnv
from sleuth.evaluation.reading_exam import examine
from sleuth.factories import ReadingTokens, load_model, make_reading_tokenizer, read_reading_texts
from sleuth.prompts.library import read_prompt
from sleuth.recipe import ReadingRecipe, load_recipe
from sleuth.render import Renderer
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.control import EmptyRetriever
from sleuth.retrieval.open_index import open_index
from sleuth.rewards.answer import cited_passage
from sleuth.rollout import Rollout
from sleuth.training.reading_rows import ReadingRows, SearchedRows, some_sentences
from sleuth.types import Episode, Retriever, SleuthError, Task

TOWNS = ("Tarn", "Kolm", "Belport", "Ostrava", "Lund", "Vesper", "Harrow", "Mirador")
RECIPE = """
name = "reader"

[[stage]]
kind = "supervised"
name = "reading"
steps = 4
rows_per_step = 6
optimiser = "muon"
learning_rate = 1e-3
embedding_learning_rate = 1e-2
copying_weight = 1.0
save_every = 2

[stage.data]
kind = "reading"
questions = "{folder}/questions.jsonl.gz"
passages = ["{folder}/passages.jsonl"]
held_out = ["Tarn"]
mix = {{ walks = 1, talks = 2 }}

[stage.init]
layers = 4
width = 48
heads = 4
kv_heads = 4
head_dim = 40
mlp = 64
context = 512
rope_theta = 1e7
vocabulary = 420
reading = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three passages about each of eight towns, and two questions about each passage."""
    passages, questions = [], []
    for town in TOWNS:
        for number in range(3):
            year, name = str(1900 + 7 * len(passages)), f"p{len(passages)}"
            text = f"The harbour was built in {year} by old Emil Voss. People of {town} sold 40 boats. It rained there."
            passages.append({"id": name, "contents": f'"{town}"\n{text}'})
            questions += [
                question(f"When was the harbour of {town} built?", year, text, name, "walks"),
                question(f"Who built harbour number {number}?", "Emil Voss", text, name, "talks"),
            ]
    write(tmp_path / "passages.jsonl", passages)
    write(tmp_path / "questions.jsonl.gz", questions)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path


def question(text: str, answer: str, passage: str, name: str, source: str) -> dict:
    return {
        "id": f"{name}-{source}",
        "question": text,
        "golden_answers": [answer],
        "gold_ids": [name],
        "answer_start": passage.index(answer),
        "data_source": source,
    }


def write(file: Path, rows: list[dict]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(lines) if file.suffix == ".gz" else lines)


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.open(file)]


def data_of(folder: Path) -> ReadingRecipe:
    data = load_recipe(folder / "recipe.toml").stage[0].data  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(data, ReadingRecipe)
    return data


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
    model, tokenizer = load_model(str(folder / "run/checkpoints/step-000002"), dtype=None, device="cpu")
    tokens, texts = ReadingTokens(tokenizer), read_reading_texts(data_of(folder))
    rows = ReadingRows(texts, tokens, mix=None, rows=1, key=(0,))
    prompts = [rows.prompt(number, one) for number, one in enumerate(texts.held_out)]
    exam = examine(model, tokens, texts.held_out, prompts, log=print)
    for given, answer in zip(prompts, exam.answers, strict=True):
        prompt = torch.tensor([given])
        written = model.generate(prompt, max_new_tokens=35, do_sample=False)[0, prompt.shape[1] :]  # pyright: ignore
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
        *answer, digit = copied
        assert digit == trained[-3]
        assert answer == trained[: len(answer)]
        assert str(tokenizer.decode([*row.tokens[answer[-1] + 1 : digit]])) == " ["
        text = str(tokenizer.decode([*row.tokens]))
        first, second = text.split("<question>")[1], text.split("<question>")[2].split("<answer>")[0]
        assert first.split("<passage>")[0] == second
        assert "Tarn" not in text


def test_rows_begin_as_single_sentences_and_end_as_whole_passages(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = ReadingRows(texts, tokens, mix=None, rows=400, key=(0, 0))

    def count(index: int) -> int:
        text = str(tokens.tokenizer.decode([*rows.row(index).tokens]))
        passage = text.split("<passage>")[1].split("<question>")[0]
        return len(sentences(passage.split(" | ")[1].strip()))

    early, late = ([count(index) for index in some] for some in (range(60), range(340, 400)))
    assert sum(number == 1 for number in early) > 45
    assert set(late) == {3}


def test_a_row_with_a_search_is_the_episode_that_the_environment_plays(folder: Path) -> None:
    """Token by token, wherever the passage was found by itself."""
    texts = read_reading_texts(data_of(folder))
    build_index(folder / "passages.jsonl", folder / "index")
    index = open_index(folder / "index")
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = SearchedRows(texts, tokens, index, mix=None, rows=40, key=(0,))
    played = 0
    for row in map(rows.row, range(40)):
        text = str(tokens.tokenizer.decode([*row.tokens]))
        if "<passage> [" not in text:
            continue
        question = text.split("<question> ")[1].split("<search>")[0]
        turns = [
            "<search>" + text.split("<search>")[1].split("</search>")[0] + "</search>",
            text[text.index("<answer>") :],
        ]
        episode = asyncio.run(play(tokens.tokenizer, index, question, turns))
        assert [action.kind for action in episode.trajectory.actions] == ["search", "answer"]
        shown = text.split("<passage>", 1)[1].split("</information>")[0]
        if [
            f" [{rank}] {p.title} | {p.text} [{rank}]" for rank, p in enumerate(episode.trajectory.passages, 1)
        ] == shown.split("<passage>"):
            assert episode.trajectory.tokens == row.tokens
            trained = [segment.author == "policy" for segment in episode.trajectory.segments for _ in segment.tokens]
            assert trained == [*row.trained]
            cited = cited_passage(episode.trajectory, READING)
            assert cited is not None
            assert episode.trajectory.actions[-1].text in cited.text
            played += 1
    assert played > 5


async def play(
    tokenizer: PreTrainedTokenizerFast,
    retriever: Retriever,
    question: str,
    turns: list[str],
    *,
    closed_book: bool = False,
) -> Episode:
    task = Task(id="q", question=question, golden_answers=("x",))
    frame = frame_of(READING, "raw", None)
    env = SearchEnv(task, READING, read_prompt("reading"), retriever, frame=frame, closed_book=closed_book)
    engine = ScriptedEngine(tokenizer, lambda text, sampling: turns.pop(0))
    renderer = Renderer(tokenizer, READING.tags)
    rollout = Rollout(engine=engine, renderer=renderer, context=2048, temperature=1.0, key=(0, 0, 0))
    return await rollout.episode(env, task, 0, 0)


def test_a_row_with_a_search_copies_its_query_and_its_answer(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    build_index(folder / "passages.jsonl", folder / "index")
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = SearchedRows(texts, tokens, open_index(folder / "index"), mix=None, rows=40, key=(0,))
    for index in range(40):
        row = rows.row(index)
        assert row == rows.row(index)
        assert row.sources is not None
        for place, source in enumerate(row.sources):
            assert source == -1 or (row.trained[place] and row.tokens[source] == row.tokens[place] and source < place)
        text = str(tokens.tokenizer.decode([*row.tokens]))
        if "<passage> [" not in text:
            continue
        query = text.split("<search>")[1].split("</search>")[0]
        assert query in text.split("<search>")[0]
        assert len(query.split()) >= 2
        answer, number = text.split("<answer>")[1].removesuffix("]</answer>").rsplit(" [", 1)
        [cited] = [part for part in text.split("<passage>") if part.startswith(f" [{number}]")]
        assert answer in cited.split("</information>")[0]


def test_a_few_rows_have_no_passage(folder: Path) -> None:
    """As the environment opens an answer with a closed book, and as it answers a search that finds nothing."""
    texts = read_reading_texts(data_of(folder))
    build_index(folder / "passages.jsonl", folder / "index")
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = SearchedRows(texts, tokens, open_index(folder / "index"), mix=None, rows=300, key=(0,))
    guessed = [row for row in map(rows.row, range(300)) if tokens.tags["</information>"] not in row.tokens]
    nothing = [row for row in map(rows.row, range(300)) if "<passage></information>" in tokens.text(row.tokens)]
    assert 2 <= len(guessed) <= 20
    assert 2 <= len(nothing) <= 20
    for row in (*guessed, *nothing):
        text = tokens.text(row.tokens)
        question = text.split("<question> ")[1].split("<")[0]
        turns = [f"<search>{text.split('<search>')[1].split('</search>')[0]}</search>"] if row in nothing else []
        turns.append(text[text.index("<answer>") + len("<answer>") * (row in guessed) :])
        episode = asyncio.run(play(tokens.tokenizer, EmptyRetriever(), question, turns, closed_book=row in guessed))
        assert episode.trajectory.tokens == row.tokens
        assert episode.trajectory.stop == "answered"
        trained = [segment.author == "policy" for segment in episode.trajectory.segments for _ in segment.tokens]
        assert trained == [*row.trained]


def test_a_passage_that_is_not_found_takes_the_place_of_another(folder: Path) -> None:
    texts = read_reading_texts(data_of(folder))
    build_index(folder / "passages.jsonl", folder / "index")
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    rows = SearchedRows(texts, tokens, open_index(folder / "index"), mix=None, rows=40, key=(0,))
    ranks = set()
    for number, question in enumerate(texts.questions):
        asked = replace(question, question="Who rained?")
        text = str(tokens.tokenizer.decode([*rows.prompt(number, asked)]))
        shown = text.split("<passage>")[1:]
        assert len(shown) == 3
        ranks |= {rank for rank, part in enumerate(shown, 1) if question.passage.text in part}
    assert ranks == {1, 2, 3}


def test_the_sentences_of_a_row_hold_its_answer() -> None:
    text = "One fell. Two came in 1912. Three saw four. Five left at six. Seven won."
    draw = random.Random(0)
    for begin, stop in sentences(text):
        for most in (1, 2, 3, 9):
            low, high = some_sentences(text, begin + 1, stop - 1, most, draw)
            assert low <= begin < stop <= high
            assert len(sentences(text[low:high])) == min(most, 5)


def test_a_word_of_a_question_begins_with_the_space_before_it(folder: Path) -> None:
    tokens = ReadingTokens(make_reading_tokenizer(read_reading_texts(data_of(folder)), 420))
    asked = tokens.question_words('In 1912, did "Ed" (b. 18) go and/or?')
    words = [(word, tokens.text(asked.tokens[first:after])) for word, first, after in asked.words]
    assert words == [
        ("In", " In"),
        ("1912", " 1912"),
        ("did", " did"),
        ("Ed", ' "Ed'),
        ("b", " (b"),
        ("18", " 18"),
        ("go", " go"),
        ("and", " and"),
        ("or", "/or"),
    ]


def test_a_tag_in_a_text_is_text(folder: Path) -> None:
    tokens = ReadingTokens(make_reading_tokenizer(read_reading_texts(data_of(folder)), 420))
    encoded = tokens.passage(2, "<answer>", "Emil Voss <|end|> built it <answer> here.")
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


def test_absent_files_are_named_before_the_run(folder: Path) -> None:
    (folder / "questions.jsonl.gz").unlink()
    (folder / "passages.jsonl").unlink()
    result = CliRunner().invoke(app, ["train", str(folder / "recipe.toml"), "--run", str(folder / "run")])
    assert result.exit_code == 2
    assert result.output.count("no such file") == 2
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("vocabulary = 420", "", "init.vocabulary is missing"),
        ("vocabulary = 420", "vocabulary = 90", "has no room for the single bytes"),
        ("heads = 4\nkv_heads = 4", "heads = 4\nkv_heads = 2", "reading = true needs tie = true"),
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
