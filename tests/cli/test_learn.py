"""`sleuth learn`: from a folder of documents to a certificate with one command, which goes on after a stop."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from verb import printed_json, refusal, sleuth

from sleuth.cli.learn import LEARNING, _Steps, settings_of
from sleuth.evaluation.certainty import Certainty
from sleuth.recipe.shipped import find_model
from sleuth.report.live import home_state, live_reports, state_shown
from sleuth.types import SleuthError

PEOPLE = (
    "Ada Voss,Bo Lind,Cleo Marr,Dag Holt,Eva Stern,Finn Roth,Gro Dahl,Hal Brandt,Ida Falk,Jon Berg,Kai Lund,Lea Moss"
)
ENDINGS = ("", "berg", "feld", "mark", "stad", "wick", "dorf", "beck", "hall")
TOWNS = "Tarn,Glodale,Zemville,Morley,Ulfmore,Ludville,Creton,Grostad,Ivoville,Munminster,Averton,Belmar"
SHORT = [
    part for text in ("steps=2", "prompts_per_step=2", "samples_per_prompt=4") for part in ("--set", f"grpo.{text}")
]
SHORT += ["--set", "grpo.warmup_steps=0", "--set", "grpo.probe_prompts=0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers").mkdir()
    first, last = zip(*(name.split() for name in PEOPLE.split(",")), strict=True)
    names = [f"{one} {other}" for one, other in product(first, last)][:100]
    towns = [f"{town}{ending}" for town, ending in product(TOWNS.split(","), ENDINGS)][:100]
    for at, (name, town) in enumerate(zip(names, towns, strict=True)):
        other, year = names[at - 1], 1751 + 2 * at
        told = [
            f"{name} was born in {town} in {year}. {name} worked for {other} as a surveyor in {towns[at - 3]}.",
            f"In {year + 30}, {name} founded the {town} Museum. The {town} Museum is in {towns[at - 2]}.",
            f"{name} died in {towns[at - 5]} in {year + 61}. A bridge near {town} is named after {name}.",
        ]
        (tmp_path / "papers" / f"{at}.md").write_text(f"# {name}\n\n" + "\n\n".join(told) + "\n")
    return Path("papers")


@pytest.mark.slow
def test_a_folder_becomes_questions_a_model_and_a_certificate_and_goes_on_after_a_stop(folder: Path) -> None:
    made = printed_json("learn", folder, *SHORT, "--anyway")
    home = Path("runs/papers")
    assert made["questions"] == {
        part: Counter(json.loads(line)["type"] for line in (home / f"questions/{part}.jsonl").read_text().splitlines())
        for part in ("train", "test")
    }
    assert [*made["seconds"]] == [*LEARNING]
    assert (made["handed_over"], made["certificate"]["passes"]) == (True, False)  # of two steps
    assert (made["home"], made["model"]) == (str(home), str(home / "training/checkpoints/step-000002"))
    state, steps = home_state(home)
    assert state is not None
    assert state.sentence.startswith("finished, and handed over: its gain in exact match, ")
    assert [step.partition(":")[0] for step in steps] == [*LEARNING.values()]
    card = json.loads((home / "questions/card.json").read_text())
    assert card["rows"]["test"] >= 20
    documents = {
        part: {json.loads(line)["document"] for line in (home / f"questions/{part}.jsonl").read_text().splitlines()}
        for part in ("train", "test")
    }
    assert documents["train"]
    assert documents["train"].isdisjoint(documents["test"])
    certificate = json.loads((home / "certificate.json").read_text())
    assert "not above zero" in json.dumps(certificate)  # of two steps
    trained = home / "training/checkpoints/step-000002"
    assert Certainty.read(trained) == Certainty.read(Path(find_model("models/tiny-real")))
    weights = (trained / "model.safetensors").read_bytes()
    again = sleuth("learn", folder, *SHORT)
    assert again.exit_code == 1
    assert "is not handed over" in again.stderr
    assert home_state(home)[0].sentence.startswith("finished, and not handed over: ")  # pyright: ignore
    assert (trained / "model.safetensors").read_bytes() == weights
    answer = json.loads(sleuth("ask", folder, "Where was Ada Voss born?", "--json", "--quiet").stdout)
    assert answer["question"] == "Where was Ada Voss born?"
    handed = sleuth("learn", folder, *SHORT, "--anyway").stdout
    assert handed.endswith(f"Ask it:  sleuth ask papers --run {home} --model {trained}\n")


KILLED_AT = {
    "documents": "documents.json",
    "questions": "questions/made.jsonl",
    "training": "training/metrics.jsonl",
    "certificate": "certificate/base.json",
    "file": "certificate.html",
}
"""A file that is there before a step is over."""


@pytest.mark.slow
def test_killed_in_each_step_it_ends_as_if_nothing_had_happened(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sleuth", "learn", folder, *SHORT, "--anyway", "--quiet", "--json"]
    home, ended = Path("runs/papers"), []
    for step, file in KILLED_AT.items():
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and not (home / file).exists():
                time.sleep(0.01)
            process.kill()
        ended.append((step, process.returncode))
        state, _ = home_state(home)
        assert state is None or state.kind in ("stopped", "waiting"), state
    assert ended == [(step, -signal.SIGKILL) for step in KILLED_AT]
    killed = printed_json(*command[3:-1])
    kept = {name: (home / name).read_bytes() for name in SAME}
    shutil.rmtree(home)
    whole = printed_json(*command[3:-1])
    assert {name: (home / name).read_bytes() for name in SAME} == kept
    assert whole | {"seconds": None} == killed | {"seconds": None}


SAME = (
    *("corpus.jsonl", "questions/train.jsonl", "questions/test.jsonl", "questions/made.jsonl"),
    *("training/checkpoints/step-000002/model.safetensors", "certificate.json"),
)


def test_a_home_is_watched_by_its_steps_and_only_one_command_works_in_it(folder: Path) -> None:
    home = Path("runs/papers")
    steps = _Steps(home, quiet=True, as_json=False)
    home.mkdir(parents=True)
    (home / "documents.json").write_text("{}")
    [report] = live_reports([home])
    report.look()
    assert report.state.sentence == "waiting: `sleuth learn` has not begun here"
    with steps("documents"), steps("questions"):
        report.look()
        assert (report.state.kind, report.state.sentence) == ("working", "step 2 of 5: make questions of them")
        assert report.steps[1:3] == ["Make questions of them: now", "Train a model on most of the questions: to come"]
        with pytest.raises(SleuthError, match="is writing"), steps("training"):
            pass
    report.look()
    assert report.state.sentence == "stopped at step 2 of 5: make questions of them; the same command goes on"
    with steps("training"):
        (home / "training").mkdir()
        report.look()
        assert report.state.sentence == "waiting: no run has begun in this folder"
        shown = state_shown([report], 0)["html"]
    assert "<li>Train a model on most of the questions: now</li>" in shown


def test_a_model_of_other_questions_is_not_certified_on_these(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(recipe: Path, settings: list[str], out: Path, *, quiet: bool) -> None:
        out.mkdir(exist_ok=True)
        raise SleuthError("killed in the training")

    monkeypatch.setattr("sleuth.cli.train.train", killed)
    assert refusal("learn", folder, "--quiet") == "killed in the training"
    assert refusal("learn", folder, "--quiet") == "killed in the training"  # of the same questions it goes on
    for file in folder.iterdir():
        file.write_text(file.read_text().replace("Museum", "Library"))
    assert "runs/papers/training: trained on other questions than" in refusal("learn", folder, "--quiet")
    shutil.rmtree("runs/papers/training")
    assert refusal("learn", folder, "--quiet") == "killed in the training"


def test_a_recipe_for_a_folder_reads_the_home_that_it_is_given() -> None:
    home = Path("runs/papers")
    assert settings_of(Path("tiny/folder"), home) == [
        'stage.0.data.questions="runs/papers/questions/train.jsonl"',
        'stage.0.env.index="runs/papers/index"',
    ]
    of_card = settings_of(Path("folder_0.6b_single_gpu"), home)
    assert 'stage.3.data.questions="runs/papers/questions/test.jsonl"' in of_card
    with pytest.raises(SleuthError, match="did you mean tiny/folder"):
        settings_of(Path("tiny/foldr"), home)


def test_too_few_documents_and_a_folder_that_is_not_there_are_a_line_each(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "nowhere" in refusal("learn", "nowhere")
    (tmp_path / "few").mkdir()
    assert refusal("learn", "few", "--recipe", "demo").startswith("--recipe demo: reads no folder's questions; ")
    for name in ("a", "b"):
        (tmp_path / "few" / f"{name}.md").write_text(f"# {name}\n\nMister {name} was born in Tarn in 1890.\n")
    result = sleuth("learn", "few")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("error: few: 2 questions to test with, and fewer than 20 certify")
