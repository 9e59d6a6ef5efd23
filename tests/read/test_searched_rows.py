"""Rows with a search: the episodes that the environment plays, and what they copy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from towns import data_of, write, write_towns
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from sleuth.answers.answer import cited_passage, cited_passage_holds, quotation
from sleuth.cli.app import app
from sleuth.episodes.frames import frame_of
from sleuth.episodes.library import read_prompt
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.read.dialect import READING
from sleuth.read.rows import SearchedRows, query_places
from sleuth.read.texts import ReadingTexts, read_passages, read_reading_texts
from sleuth.read.tokens import (
    QUESTION_TOKENS,
    RESULT_TOKENS,
    SEARCHED_ROW_TOKENS,
    ReadingTokens,
    make_reading_tokenizer,
)
from sleuth.render import Renderer
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.open_index import open_index
from sleuth.rollout import Rollout
from sleuth.search.env import EmptyRetriever, GoldRetriever, SearchEnv
from sleuth.types import Episode, Retriever, Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_towns(tmp_path)


def searched(folder: Path, *, rows: int = 40) -> tuple[ReadingTexts, ReadingTokens, SearchedRows]:
    """The texts of the folder, their tokens, and rows over their index."""
    texts = read_reading_texts(data_of(folder))
    build_index(folder / "passages.jsonl", folder / "index")
    tokens = ReadingTokens(make_reading_tokenizer(texts, 420))
    index = open_index(folder / "index")
    return texts, tokens, SearchedRows(texts, tokens, index, mix=None, rows=rows, key=(0,))


def test_a_row_with_a_search_is_the_episode_that_the_environment_plays(folder: Path) -> None:
    """Token by token, wherever the passage was found by itself; its quotation is in the passage that it cites."""
    _, tokens, rows = searched(folder)
    played = 0
    for row in map(rows.row, range(160)):
        text = str(tokens.tokenizer.decode([*row.tokens]))
        if " | " not in text:
            continue
        asked = text.split("<question> ")[1].split("<search>")[0]
        turns = [
            "<search>" + text.split("<search>")[1].split("</search>")[0] + "</search>",
            text[text.index("<answer>") :],
        ]
        episode = asyncio.run(play(tokens.tokenizer, rows.index, asked, turns))
        assert [action.kind for action in episode.trajectory.actions] == ["search", "answer"]
        shown = text.split("<passage>", 1)[1].split("</information>")[0]
        if [f" {one.title} | {one.text}" for one in episode.trajectory.passages] == shown.split("<passage>"):
            assert episode.trajectory.tokens == row.tokens
            trained = [segment.author == "policy" for segment in episode.trajectory.segments for _ in segment.tokens]
            assert trained == [*row.trained]
            cited, quoted = cited_passage(episode.trajectory, READING), quotation(episode.trajectory, READING)
            assert cited is not None
            assert quoted in cited.text
            assert quoted.startswith(answer := episode.trajectory.actions[-1].text)
            assert cited_passage_holds(answer, episode.trajectory, READING)
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


def test_a_few_rows_have_no_passage(folder: Path) -> None:
    """As the environment opens an answer with a closed book, and as it answers a search that finds nothing."""
    _, tokens, rows = searched(folder, rows=600)
    answered = [row for row in map(rows.row, range(600)) if tokens.tags["<answer>"] in row.tokens]
    guessed = [row for row in answered if tokens.tags["</information>"] not in row.tokens]
    nothing = [row for row in answered if "<passage></information>" in tokens.text(row.tokens)]
    assert 5 <= len(guessed) <= 35
    assert 5 <= len(nothing) <= 35
    for row in (*guessed, *nothing):
        text = tokens.text(row.tokens)
        asked = text.split("<question> ")[1].split("<")[0]
        turns = [f"<search>{text.split('<search>')[1].split('</search>')[0]}</search>"] if row in nothing else []
        turns.append(text[text.index("<answer>") + len("<answer>") * (row in guessed) :])
        episode = asyncio.run(play(tokens.tokenizer, EmptyRetriever(), asked, turns, closed_book=row in guessed))
        assert episode.trajectory.tokens == row.tokens
        assert episode.trajectory.stop == "answered"
        trained = [segment.author == "policy" for segment in episode.trajectory.segments for _ in segment.tokens]
        assert trained == [*row.trained]
        assert "[" not in text  # nothing is there to be quoted


def test_half_of_the_rows_are_the_beginning_of_an_episode_up_to_its_search(folder: Path) -> None:
    _, tokens, rows = searched(folder)
    asking = [row for row in map(rows.row, range(200)) if row.tokens[-1] == tokens.tags["</search>"]]
    assert 80 <= len(asking) <= 120
    for row in asking[:20]:
        asked, query = tokens.text(row.tokens).removeprefix("<question> ").split("<search>")
        turns = [f"<search>{query}", "<answer> x</answer>"]
        trajectory = asyncio.run(play(tokens.tokenizer, rows.index, asked, turns)).trajectory
        assert trajectory.actions[0].text == query.removesuffix("</search>").strip()
        assert trajectory.tokens[: len(row.tokens)] == row.tokens
        trained = [segment.author == "policy" for segment in trajectory.segments for _ in segment.tokens]
        assert trained[: len(row.tokens)] == [*row.trained]


def test_a_sentence_that_is_not_shown_takes_the_place_of_another(folder: Path) -> None:
    texts, tokens, rows = searched(folder)
    ranks = set()
    for number, given in enumerate(texts.questions):
        asked = replace(given, question="Who rained there?")
        text = str(tokens.tokenizer.decode([*rows.prompt(number, asked)]))
        shown = text.split("<passage>")[1:]
        assert len(shown) == READING.top_k
        ranks |= {rank for rank, part in enumerate(shown, 1) if given.of_sentence().passage.text in part}
    assert ranks == {1, 2, 3, 4}


def lengthen(folder: Path) -> None:
    """Makes the first sentence of every passage longer than its budget among the results, and the only one."""
    passages = [json.loads(line) for line in (folder / "passages.jsonl").read_text().splitlines()]
    for at, passage in enumerate(passages):
        passage["contents"] = passage["contents"].replace(". ", "; ").rstrip(".")
        passage["contents"] += "".join(f"; boat {at}{number} of Ulm sank" for number in range(60))
    write(folder / "passages.jsonl", passages)


def test_sentences_are_cut_as_the_environment_cuts_them_and_quoted_as_far_as_they_are_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengthen(folder)
    _, tokens, rows = searched(folder)
    passages = read_passages([folder / "passages.jsonl"]).values()
    cut = 0
    for row in map(rows.row, range(80)):
        text = tokens.text(row.tokens)
        shown = text.split("<passage> ")[1:]
        if not shown:
            continue
        found = [next(p for p in passages if part.startswith(f"{p.title} | {p.text[:40]}")) for part in shown]
        asked, rest = text.removeprefix("<question> ").split("<search>")
        turns = [f"<search>{rest.split('</search>')[0]}</search>", text[text.index("<answer>") :]]
        trajectory = asyncio.run(play(tokens.tokenizer, GoldRetriever(found), asked, turns)).trajectory
        if [one.text for one in trajectory.passages] != [one.text for one in found]:
            continue  # the row has them in random order
        assert trajectory.tokens == row.tokens
        assert len(row.tokens) <= SEARCHED_ROW_TOKENS
        starts = [at + 1 for at, token in enumerate(row.tokens) if token == tokens.tags["<passage>"]]
        stop = row.tokens.index(tokens.tags["</information>"])
        assert all(after - start == RESULT_TOKENS + 1 for start, after in pairwise([*starts, stop + 1]))
        assert row.sources is not None
        source = row.sources[row.tokens.index(tokens.tags["<answer>"]) + 1]
        [rank] = [at for at, start in enumerate(starts) if start <= source < start + RESULT_TOKENS]
        assert text.split("<answer>")[1].removesuffix("]</answer>").replace(" [", "").strip() in found[rank].text
        cut += 1
    assert cut > 10


def test_a_question_without_words_or_longer_than_a_row_is_searched_as_far_as_it_goes(folder: Path) -> None:
    texts, tokens, rows = searched(folder)
    mute = tokens.question_words("???")
    assert mute.words == ()
    assert query_places(mute) == [*range(1, len(mute.tokens))]
    alone = tokens.text(rows.prompt(0, replace(texts.questions[0], question="???")))
    assert alone.count("<passage>") == 1  # nothing is found for it, and the right one is put there
    assert texts.questions[0].of_sentence().passage.text in alone
    plain = tokens.question_words("Who is it?")
    assert tokens.text([plain.tokens[at] for at in query_places(plain)]) == " Who is it"
    long = tokens.question_words("Why did boats " * 40)
    assert len(long.tokens) == QUESTION_TOKENS + 1
    assert long.words[-1][2] <= len(long.tokens)
    assert query_places(long)[-1] < len(long.tokens)


def test_a_stage_with_a_search_is_trained_and_examined(folder: Path) -> None:
    build_index(folder / "passages.jsonl", folder / "index")
    index = f'stage.0.data.index="{folder}/index"'
    settings = (index, "stage.0.init.context=1024", "stage.0.steps=2")
    assert train(folder, *settings).exit_code == 0
    found = json.loads((folder / "run/eval/reading_held_out.json").read_text())
    assert found["exact_match"]["n"] == 6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"contents": '"Kolm"\nIt is another text.'}, "the index has another text for passage 'p4' of data.passages"),
        ({"id": "elsewhere"}, "the index does not have passage 'p4' of data.passages"),
    ],
)
def test_an_index_of_other_passages_is_one_line_before_the_run(folder: Path, change: dict, complaint: str) -> None:
    """Answers would be copied from where another text has them."""
    passages = [json.loads(line) for line in (folder / "passages.jsonl").read_text().splitlines()]
    passages[4] |= change
    write(folder / "others.jsonl", passages)
    build_index(folder / "others.jsonl", folder / "index")
    result = train(folder, f'stage.0.data.index="{folder}/index"', "stage.0.init.context=1024")
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())
    assert not (folder / "run").exists()


def train(folder: Path, *settings: str) -> Result:
    changed = [part for setting in settings for part in ("--set", setting)]
    return CliRunner().invoke(app, ["train", str(folder / "recipe.toml"), "--run", str(folder / "run"), *changed])
