"""`sleuth certify`: what both models answer, the gate, the page, and every mistake in a line."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from emulator.served import emulated_server
from scripted_judge import ScriptedJudge
from verb import printed_json, refusal, sleuth, write_rows

from sleuth.dialect import DIALECTS
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation.certainty import Certainty, Step
from sleuth.evaluation.eval_session import EvalSession
from sleuth.learn.models import load_model
from sleuth.retrieval.bm25 import build_index
from sleuth.types import Engine, Sampling

MODELS = Path(__file__).parents[2] / "models"
BASE_CONTEXT, TRAINED_CONTEXT = 500, 512
QUESTIONS, LOST = 60, 6
"""Questions, of which the last few have lost their passage."""
HOSTILE = "</script><img src=x onerror=alert(1)>"


def scripted(session: EvalSession) -> Engine:
    """The trained model copies the town from its passage, and says so where there is none; the base does it for every
    fourth person, and names `Elsewhere` for the others."""

    def answer(text: str, sampling: Sampling) -> str:
        name = re.findall(r"was (Person\d+)", text)[-1]
        if text.endswith("<answer>"):
            return " Nowhere []</answer>"
        if "</information>" not in text:
            return f"<search> {name}</search>"
        if session.context == BASE_CONTEXT and int(name[6:]) % 4:
            return "<answer> Elsewhere []</answer>"
        town = re.search(rf"{name} was born in (\w+)", text)
        return f"<answer> {town[1]} [.]</answer>" if town else "<answer> It is not mentioned []</answer>"

    return ScriptedEngine(session.tokenizer, answer)


class NamedTwin(ScriptedJudge):
    identity = "scripted"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an index, questions, two models and their certificate."""
    home = tmp_path_factory.mktemp("home")
    people = range(1, QUESTIONS + 1)
    texts = [f'"Person{n}"\nIn short, Person{n} was born in Town{n}. {HOSTILE}' for n in people]
    build_index(write_rows(home / "c", [{"id": f"p{n}", "contents": texts[n - 1]} for n in people]).rename(
        home / "corpus.jsonl"), home / "index")  # fmt: skip
    asked = [{"id": f"q{n}", "question": f"Where was Person{n} born?"} for n in people]
    rows = [
        {**row, "golden_answers": [f"Town{n}"], "gold_ids": [f"p{n}"], "type": "cloze" if n % 2 else "one_hop"}
        if n <= QUESTIONS - LOST
        else {**row, "answerable": False, "taken_out": [f"p{n}"], "tool_output": "<snippet id=a1>No.</snippet>"}
        for n, row in zip(people, asked, strict=True)
    ]
    write_rows(home / "test.jsonl", rows)
    for name, source, context in (
        ("base", "tiny-base", BASE_CONTEXT),
        ("trained", "tiny-reader", TRAINED_CONTEXT),
    ):
        shutil.copytree(MODELS / source, home / name)
        prompt = "<question> {question}"
        ProtocolCard(
            dialect=replace(DIALECTS["reading"], top_k=1),
            prompt="reading",
            prompt_text=prompt,
            prompt_sha256=text_sha256(prompt),
            context=context,
            scorer="strict",
            sleuth_version="0",
        ).write(home / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvalSession, "open_engine", scripted)
        result = sleuth(*command(home), COLUMNS="80")
    assert result.exit_code == 0, result.output
    (home / "printed.txt").write_text(result.stdout)
    return home


@pytest.fixture
def home(certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which a model may be asked again."""
    monkeypatch.setattr(EvalSession, "open_engine", scripted)
    return Path(shutil.copytree(certified, tmp_path / "home"))


def command(home: Path, *more: object, model: str = "trained", base: str = "base") -> list[object]:
    named = ["--base", home / base, "--questions", home / "test.jsonl", "--index", home / "index"]
    return ["certify", home / model, *named, *more]


def values(figures: dict[str, Any], name: str) -> list[float]:
    return [round(figures[name][arm]["value"], 3) for arm in ("base", "trained", "difference")]


def test_both_models_are_asked_the_same_questions_and_the_control_arms_too(certified: Path) -> None:
    found = json.loads((certified / "certificate.json").read_text())
    answerable = QUESTIONS - LOST
    right = answerable // 4 / answerable
    gained = [round(right, 3), 1.0, round(1 - right, 3)]
    figures = found["figures"]
    assert values(figures, "em") == values(figures, "supported") == gained
    assert values(figures, "silent") == [0.0, 0.0, 0.0]
    fourths = sum(n % 4 > 0 for n in range(QUESTIONS - LOST + 1, QUESTIONS + 1)) / LOST
    assert values(figures, "shown") == [round(fourths, 3), 0.0, round(-fourths, 3)]
    assert "judged" not in figures
    controls = {name: one["em"]["value"] for name, one in found["controls"].items()}
    assert controls.pop("others' passages") < 0.1  # a few find their own
    assert controls == {"closed book": 0.0, "nothing found": 0.0, "words beside the question's": 1.0}
    assert {name: one["trained"]["n"] for name, one in found["kinds"].items()} == {
        **dict.fromkeys(("cloze", "one_hop"), answerable // 2),
        "unanswerable": LOST,
    }
    assert found["passes"] is True
    assert found["gain"]["n"] == answerable
    assert found["failures"]["trained"]["right"] == answerable
    printed = (certified / "printed.txt").read_text()
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    assert "Its gain in exact match, +0.759" in printed


def test_nothing_is_asked_twice_until_a_file_changes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads((home / "certificate.json").read_text())["certificate"]
    monkeypatch.setattr(EvalSession, "ask", None)
    assert printed_json(*command(home))["certificate"] == before
    monkeypatch.undo()
    monkeypatch.setattr(EvalSession, "open_engine", scripted)
    (home / "certificate" / "closed_book.json").write_text("damaged")
    assert printed_json(*command(home))["certificate"] == before


def test_what_a_model_is_too_unsure_of_to_show_is_no_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.cli.certified_arms.signals_of", lambda *of: (-2.0,))
    Certainty(weights=(1.0, 0.0), threshold=-1.0, steps=(Step(above=-3.0, right=1, n=2),)).write(home / "trained")
    figures = printed_json(*command(home))["figures"]
    assert values(figures, "silent") == [0.0, 1.0, 1.0]
    assert figures["em"]["trained"]["value"] == 1.0


def test_a_base_without_a_protocol_is_asked_as_the_model(home: Path) -> None:
    (home / "base/protocol.json").unlink()  # the scripted base is right where it has the context of the model
    assert values(printed_json(*command(home), status=1)["figures"], "em") == [1.0, 1.0, 0.0]


def test_a_note_says_that_the_model_was_trained_with_another_corpus_and_none_that_the_base_was(home: Path) -> None:
    for name in ("base", "trained"):
        card = json.loads((home / name / "protocol.json").read_text())
        (home / name / "protocol.json").write_text(json.dumps(card | {"corpus_sha256": "0" * 64}))
    assert sleuth(*command(home)).stderr.count("the corpus is not what the checkpoint was trained with") == 1


BASES = Certainty(weights=(1.0, 0.0), threshold=-52.0, steps=(Step(above=-99.0, right=1, n=2),))
"""Withholds what is said of `Person53` and later ones."""


@pytest.fixture
def unsure(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose base has a certainty. The one signal of an answer is the number of the person, below zero."""

    def signals(question: str, *of: object) -> tuple[float]:
        return (-float(question.split("Person")[1].split()[0]),)

    for module in ("cli.certified_arms", "evaluation.certainty"):
        monkeypatch.setattr(f"sleuth.{module}.signals_of", signals)
    BASES.write(home / "base")
    return home


def test_a_model_is_as_sure_as_its_base_in_the_same_dialect(unsure: Path) -> None:
    figures = printed_json(*command(unsure))["figures"]
    assert Certainty.read(unsure / "trained") == BASES
    assert values(figures, "silent") == [round(2 / 54, 3), round(2 / 54, 3), 0.0]
    own = replace(BASES, threshold=-99.0)
    own.write(unsure / "trained")
    assert sleuth(*command(unsure)).exit_code == 0
    assert Certainty.read(unsure / "trained") == own  # which is not replaced

    (unsure / "trained/certainty.json").unlink()
    card = json.loads((unsure / "trained/protocol.json").read_text())
    card["dialect"]["name"] = "another"
    (unsure / "trained/protocol.json").write_text(json.dumps(card))
    assert sleuth(*command(unsure)).exit_code == 0
    assert Certainty.read(unsure / "trained") is None


def test_other_questions_say_when_a_model_should_not_answer(unsure: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleuth.cli.certified_arms.LEAST", 20)
    rows = [json.loads(line) for line in (unsure / "test.jsonl").read_text().splitlines()]
    write_rows(unsure / "test.jsonl", rows[30:])
    aside = write_rows(unsure / "calibration.jsonl", rows[:30])
    figures = printed_json(*command(unsure, "--calibration", aside))["figures"]
    fitted = Certainty(weights=(1.0, 0.0), threshold=-27.0, steps=(Step(above=-30.0, right=30, n=30),))
    assert Certainty.read(unsure / "trained") == fitted
    assert figures["silent"]["trained"]["value"] == 1.0  # all are above 29

    (unsure / "trained/certainty.json").unlink()
    write_rows(aside, rows[:19])
    result = sleuth(*command(unsure, "--calibration", aside))
    assert f"{aside}: 19 of 19 answers with log-probabilities are right, not 20" in result.stderr
    assert Certainty.read(unsure / "trained") == BASES
    (unsure / "trained/certainty.json").unlink()
    (unsure / "base/certainty.json").unlink()
    assert sleuth(*command(unsure, "--calibration", aside)).exit_code == 0
    assert Certainty.read(unsure / "trained") is None
    BASES.write(unsure / "base")
    write_rows(aside, rows[:30])
    monkeypatch.setattr("sleuth.evaluation.certainty.signals_of", lambda *of: None)  # as of a server without them
    result = sleuth(*command(unsure, "--calibration", aside))
    assert "0 of 0 answers with log-probabilities are right, not 20" in result.stderr
    assert Certainty.read(unsure / "trained") == BASES
    write_rows(aside, [*rows[:30], rows[40]])
    assert "1 of its questions are in" in refusal(*command(unsure, "--calibration", aside))
    assert "needs a file of questions" in refusal(*command(unsure, "--calibration", "nowhere.jsonl"))


def test_a_judge_says_what_is_right_in_other_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = NamedTwin({("Elsewhere", ""): 1.0}, default=None)
    monkeypatch.setattr("sleuth.cli.certified_arms.equality_judge", lambda recipe, file: judge)
    (home / "judge.toml").write_text('[judge]\nkind = "lexical"\n')
    found = printed_json(*command(home, "--judge", home / "judge.toml"))
    assert values(found["figures"], "judged") == [1.0, 1.0, 0.0]
    assert found["passes"] is True  # by exact match
    [cases] = judge.calls
    assert len(cases) == QUESTIONS - LOST - (QUESTIONS - LOST) // 4
    assert cases[0].criterion.endswith(f": 'Town{cases[0].question[len('Where was Person') : -len(' born?')]}'")


def test_a_model_without_a_clear_gain_is_not_handed_over(home: Path) -> None:
    refused = sleuth(*command(home, model="base", base="trained"))
    assert refused.exit_code == 1
    [line] = [line for line in refused.stderr.splitlines() if "not handed over" in line]
    assert line.startswith(f"{home / 'base'} is not handed over: its gain in exact match, -0.759 (")
    assert line.endswith("is not above zero; --anyway hands it over")
    for _ in range(2):
        assert sleuth(*command(home, "--anyway", model="base", base="trained")).exit_code == 0
    card = (home / "base" / "README.md").read_text()
    assert card.count("## Certificate") == 1
    assert "with `sleuth certify --anyway`: its gain in exact match, -0.759" in card


def test_a_model_on_a_server_is_certified_as_one_in_this_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    few = write_rows(home / "few.jsonl", [*map(json.loads, (home / "test.jsonl").read_text().splitlines()[:4])])
    asked = ["--base", home / "base", "--questions", few, "--index", home / "index", "--anyway"]
    here = printed_json("certify", home / "trained", *asked, "--run", home / "here")
    model, tokenizer = load_model(str(home / "trained"), dtype="float32", device="cpu")
    with emulated_server("vllm", model, tokenizer, context=TRAINED_CONTEXT) as server:
        monkeypatch.setattr(LocalEngine, "__init__", only_for_the_base)
        served = ["--engine", server.url, "--served-as", "tiny", "--run", home / "there"]
        there = printed_json("certify", home / "trained", *asked, *served)
    assert there == here
    assert refusal(*command(home, "--served-as", "tiny")).startswith("--served-as tiny is for a server")
    assert "--base-engine nobody: should be http" in refusal(*command(home, "--base-engine", "nobody"))


LOCAL = LocalEngine.__init__


def only_for_the_base(self: LocalEngine, *given: Any, context: int, **named: Any) -> None:
    assert context == BASE_CONTEXT
    LOCAL(self, *given, context=context, **named)


def test_a_mistake_is_one_line(home: Path) -> None:
    def refused(*more: object, **named: str) -> str:
        return refusal(*command(home, *more, **named)).replace(str(home), "HOME")

    assert (
        refused(base="trained")
        == "--base HOME/trained: has the weights of HOME/trained; name what that was trained from"
    )
    rows = (home / "test.jsonl").read_text()
    (home / "test.jsonl").write_text(rows.replace('"p7"', '"p70"'))
    assert "1 of 60 are about passages that HOME/index has not, such as 'q7'" in refused()
    (home / "test.jsonl").write_text("".join(rows.splitlines(keepends=True)[-LOST:]))
    assert "has no answerable question" in refused()
    (home / "judge.toml").write_text('[judge]\nkind = "lexical"\n')
    assert "judges statements alone" in refused("--judge", home / "judge.toml")
    on_hub = ["certify", "org/model", *command(home)[2:], "--anyway"]
    assert "writes on the card of a model's folder" in refusal(*on_hub)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_opens_offline_and_fits_a_phone(certified: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open((certified / "certificate.html").as_uri())
        browser.resize(390, 900)
        browser.value("document.querySelector('h1').textContent = 'runs/papers/training/checkpoints/step_000060'")
        assert browser.value("document.documentElement.scrollWidth") <= 390
        assert (browser.requests, browser.complaints) == ([], [])
