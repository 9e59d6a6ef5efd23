"""A hub-shaped model behind a real vLLM is the teacher: from a folder of pages to the certificate."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from real_vllm import VLLM
from served_models import birthplace_teacher
from verb import sleuth

from sleuth.world.names import words_for

PAGES = 240
SHORT = ("steps=2", "prompts_per_step=2", "samples_per_prompt=4", "warmup_steps=0", "probe_prompts=0")


def write_pages(folder: Path) -> None:
    """Pages about a person of the generated world each."""
    words = words_for(200)
    people = [f"{first} {family}" for first in words.first for family in words.family]
    random.Random(0).shuffle(people)
    folder.mkdir()
    for at, person in enumerate(people[:PAGES]):
        town = words.places[at % len(words.places)]
        (folder / f"{at}.md").write_text(f"# Book {at}\n\nIn {1800 + at % 100}, {person} was born in {town}.\n")


@pytest.mark.servers
def test_a_teacher_that_the_run_launches_writes_the_questions_of_a_folder_that_is_learned_and_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_pages(Path("papers"))
    birthplace_teacher(Path("teacher"))
    served = f'launch = "vllm"\ncommand = "{VLLM}"\nmodel = "teacher"\nmemory = "1GB"\nseconds = 300\n'
    Path("teacher.toml").write_text(f"[teacher]\n{served}")
    short = [part for text in SHORT for part in ("--set", f"grpo.{text}")]
    learn = ("learn", "papers", "--teacher", "teacher.toml", *short, "--anyway")
    assert "--no-code refuses" in sleuth(*learn, "--no-code").stderr
    result = sleuth(*learn)
    assert result.exit_code == 0, result.stderr
    home = Path("runs/papers")
    card = json.loads((home / "questions/card.json").read_text())
    assert card["written_by"] == "teacher"
    assert sum(card["made"].values()) == PAGES  # one question about each passage, in JSON that could be read
    assert {*card["fell"]} <= {"new"}  # some were born in one town, of one name
    asked = [json.loads(line) for line in (home / "questions/train.jsonl").read_text().splitlines()]
    assert {row["type"] for row in asked} == {"one_hop", "unanswerable"}
    assert all(row["question"].startswith("Where was ") for row in asked)
    certificate = json.loads((home / "certificate.json").read_text())
    assert certificate["figures"].keys() >= {"em", "supported", "silent"}
    assert certificate["controls"]
    [log] = home.rglob("vllm-teacher.log")
    begun = log.read_text().count("supervisor: ")
    assert sleuth("annotate", "questions", home, home / "questions", "--teacher", "teacher.toml").exit_code == 0
    assert log.read_text().count("supervisor: ") == begun  # nothing is left to ask
