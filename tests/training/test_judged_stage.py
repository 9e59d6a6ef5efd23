"""A run whose rewards a model behind HTTP decides."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from answer_key import AnswerKey
from chat_server import MODEL, ChatServer, part, says, scored
from refusals import refused
from run_files import groups, rows, weights

from sleuth.answers.factory import judges_in
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.rubric_reward import RubricRecipe
from sleuth.cli import pipeline
from sleuth.cli.pipeline import require_inputs
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.judge_exam import exam_paper, require_accurate
from sleuth.judges.factory import JudgePool
from sleuth.recipe import load_recipe
from sleuth.report.page import write_report
from sleuth.think.preference_tables import PairwiseRecipe, WinRateRecipe
from sleuth.think.tables import ProbeRecipe, SuffixRecipe
from sleuth.think.thought_probe import probe_thoughts
from sleuth.think.win_rate import compare_writers
from sleuth.types import SleuthError

SHORT = ("stage.1.steps=2", "stage.1.save_every=2")
BAR = "stage.1.reward.0.judge.least_accuracy=0.9"
PEOPLE = 12
STATIC = ("static_criteria",)
PAIRED = ("continuations", "suffixes", "criteria", "claims")


def by_length(body: dict[str, Any]) -> tuple[int, object]:
    """Something that differs between siblings."""
    return says(scored(len(part(body, "answer")) % 3))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer=by_length).running() as server:
        yield server


@pytest.fixture
def judged(server) -> list[str]:
    """The overrides that have a model judge the answers of a small search recipe."""
    judge = f"{{kind='http', urls=['{server.url}'], model='{MODEL}'}}"
    return [
        "stage.0.data.limit=1",
        "stage.1.prompts_per_step=2",
        "stage.1.samples_per_prompt=4",
        "stage.1.env.turn_tokens=12",
        "stage.2.data.limit=1",
        f"stage.1.reward=[{{kind='rubric', own=false, static='refiner', judge={judge}}}]",
    ]


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def train(run, recipe_file, judged, folder) -> Callable[..., Path]:
    """Runs the judged recipe, or goes on with it."""
    return lambda *overrides: run(recipe_file, folder, *judged, *overrides)


def test_a_killed_run_pays_for_no_verdict_twice_and_goes_on_to_the_same_weights(train, server, folder):
    two = ("stage.1.steps=2", "stage.1.save_every=1")
    last = train(*two)
    steps, asked, before = rows(folder), len(server.asked), weights(last)
    assert asked == sum(row["judge_asked"] for row in steps) > 0
    assert [row["judge_missing"] + row["judge_invalid"] for row in steps] == [0] * 2
    assert all(0 <= row["rubric"] <= 1 and 0 <= row["citation_discipline"] <= 1 for row in steps)
    kept = sqlite3.connect(folder / "verdicts.sqlite").execute("SELECT count(*) FROM verdicts").fetchone()
    assert kept == (asked,)
    card = ProtocolCard.read(last)
    assert card is not None
    assert card.reward is not None
    assert card.reward.parts[0].scorer.startswith(f"http {MODEL} ")
    shutil.rmtree(last)  # as if it had been killed after scoring step 2, and before it saved it
    again = train(*two)
    assert len(server.asked) == asked
    assert [row["judge_asked"] for row in rows(folder)[1:]] == [0]
    assert weights(again) == before


def test_what_the_judge_did_not_say_is_missing_and_never_zero(train, server, folder):
    server.answer = lambda body: (400, {"detail": "?"}) if len(part(body, "answer")) % 7 == 0 else by_length(body)
    train("stage.1.steps=1", "stage.1.save_every=1")
    [row] = rows(folder)
    assert row["judge_missing"] > 0
    lost = [score for group in groups(folder) for score in group.scores if score.value is None]
    assert row["missing_fraction"] == len(lost) / 8 > 0
    assert all("refused with 400" in score.note for score in lost)


def test_a_judge_that_does_not_answer_ends_the_run_before_its_first_step(recipe_file, judged, server):
    require_inputs(load_recipe(recipe_file, judged))
    said = refused(recipe_file, *(text.replace(server.url, "http://127.0.0.1:9") for text in judged))
    assert said.startswith("stage.1 (grpo): the judge of the rubric reward: urls: ")
    assert "does not answer" in said
    assert server.asked == []


def test_a_judge_that_is_gone_when_its_stage_begins_is_one_line_and_what_was_done_is_kept(
    train, server, folder, monkeypatch
):
    monkeypatch.setattr(pipeline, "_read_inputs", lambda recipe: {})  # all was there when the run began
    there, server.models = server.models, (200, {"data": [{"id": "another"}]})
    with pytest.raises(SleuthError, match=r"the judge of the rubric reward: .* does not serve it"):
        train(*SHORT)
    assert server.asked == []
    [base] = (folder / "eval").iterdir()
    measured = base.read_bytes()
    server.models = there
    train(*SHORT)
    assert (len(rows(folder)), base.read_bytes()) == (2, measured)


def test_answers_without_a_criterion_to_judge_them_by_are_refused(recipe_file, judged):
    said = refused(recipe_file, *judged, "stage.1.reward.0.own=true", "stage.1.reward.0.static=none")
    assert "has no rubrics, so that there is nothing to judge its answers by" in said


# -- exams -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sits_exam(server, monkeypatch) -> Callable[..., Callable[[], int]]:
    """Has the server answer an exam rightly but in the skills that it guesses, and judge answers by their length.
    Returns how many calls the exam has made."""
    monkeypatch.setattr("sleuth.evaluation.judge_exam.PEOPLE", PEOPLE)

    def sits(*skills: str, guesses: Sequence[str] = ()) -> Callable[[], int]:
        key = AnswerKey(exam_paper(PEOPLE, skills), lambda question: question.skill in guesses)
        server.answer = lambda body: key.reply(body) if key.knows(body) else by_length(body)
        return lambda: sum(map(key.knows, server.asked))

    return sits


def test_a_judge_that_passes_its_exam_pays_and_its_card_is_in_every_checkpoint_that_it_trained(
    train, sits_exam, folder
):
    calls = sits_exam(*STATIC)
    last = train(BAR, *SHORT)
    [card] = json.loads((last / "judges.json").read_text())
    right = card["skills"]["static_criteria"]["accuracy"]
    assert ([*card["skills"]], right["value"], right["n"]) == (["static_criteria"], 1.0, PEOPLE)
    assert card["judge"].startswith(f"http {MODEL} ")
    assert "| static criteria | 1.000 | 0.758 to 1.000 | 12 | " in (last / "README.md").read_text()
    assert calls() == card["calls"] > card["questions"] == PEOPLE * 8
    assert "static criteria" in write_report(folder).read_text()


def test_a_judge_below_the_bar_trains_nothing_and_may_try_again(train, sits_exam, folder):
    sits_exam(*STATIC, guesses=STATIC)
    expected = (
        r"right about 0\.[456]\d\d \(.*\) of an exam's static criteria \(of the kind .*; n = 12\), .* trained by it"
    )
    with pytest.raises(SleuthError, match=expected):
        train(BAR, *SHORT)
    assert not (folder / "metrics.jsonl").exists()
    sits_exam(*STATIC)
    train(BAR, *SHORT)
    assert len(rows(folder)) == 2


def test_a_judge_that_is_right_about_single_criteria_only_is_not_paid_for_sheets(train, sits_exam):
    skills = ("static_criteria", "static_criteria_on_sheets")
    sits_exam(*skills, guesses=skills[1:])
    with pytest.raises(SleuthError, match=r"an exam's static criteria on sheets .* nothing is trained by it"):
        train('stage.1.reward.0.calls="per_answer_or_rubric"', BAR, *SHORT)


@pytest.mark.parametrize(
    ("table", "kind", "asked"),
    [
        (PairwiseRecipe, "pairwise", "continuations"),
        (SuffixRecipe, "suffix", "suffixes"),
        (RubricRecipe, "rubric", "criteria"),
        (CitationRecipe, "citation", "claims"),
    ],
)
def test_a_judge_must_be_right_in_what_it_is_paid_for_and_in_nothing_else(
    server, sits_exam, tmp_path, table, kind, asked
):
    judge = {"kind": "http", "urls": [server.url], "model": MODEL, "least_accuracy": 0.8}
    recipe, said = table.model_validate({"kind": kind, "judge": judge}), list[str]()
    sits_exam(*PAIRED, guesses=[asked])
    with (
        JudgePool(tmp_path / "barred" / "verdicts.sqlite") as judge_pool,
        pytest.raises(SleuthError, match=f"the judge of the {kind} reward.* of an exam's {asked} "),
    ):
        require_accurate(judges_in([recipe]), judge_pool, said.append)
    calls = sits_exam(*PAIRED, guesses=[skill for skill in PAIRED if skill != asked])
    before, file = calls(), tmp_path / "passed" / "judges.json"
    with JudgePool(file.with_name("verdicts.sqlite")) as judge_pool:
        [card] = require_accurate(judges_in([recipe]), judge_pool, said.append)
        once = calls() - before
        assert require_accurate(judges_in([recipe]), judge_pool, said.append) == [card]
        assert calls() == before + once  # who has passed is not asked again
        old = {"judge": card["judge"], "cases": {}, "sheets": {}, "pairs": {}, "accuracy": 1.0, "sheet_accuracy": None}
        file.write_text(json.dumps([old]))  # says nothing of what it is asked for
        assert require_accurate(judges_in([recipe]), judge_pool, said.append)[0]["skills"] == card["skills"]
        assert calls() == before + 2 * once
    assert [*card["skills"]] == [asked]
    assert f"is right about 1.000 (0.758 to 1.000) of an exam's {asked} (n = 12)" in said[-1]


def test_a_stage_that_measures_by_a_judge_holds_it_to_its_bar(server, sits_exam, tmp_path):
    sits_exam(*PAIRED, guesses=["continuations", "suffixes"])
    judge = {"kind": "http", "urls": [server.url], "model": MODEL, "least_accuracy": 0.8}
    data = {"kind": "text", "texts": "texts.jsonl", "prefix_tokens": 8, "suffix_tokens": 8}
    probe = ProbeRecipe.model_validate(
        {"kind": "probe", "name": "p", "data": data, "judge": judge, "env": {"kind": "thought", "suffix_tokens": 4}}
    )
    win_rate = WinRateRecipe.model_validate({"kind": "win_rate", "name": "w", "data": data, "judge": judge})
    model: Any = None  # nothing is generated
    with JudgePool(tmp_path / "verdicts.sqlite") as judge_pool:
        with pytest.raises(SleuthError, match=r"the judge of the probe stage, .* of an exam's suffixes "):
            probe_thoughts(probe, model, judge_pool)
        with pytest.raises(SleuthError, match=r"the judge of the win_rate stage, .* of an exam's continuations "):
            compare_writers(win_rate, model, model, judge_pool)
