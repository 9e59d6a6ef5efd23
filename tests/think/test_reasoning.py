"""Made-up problems in each layout are read, solved, scored and written."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from continuations import BASE, write_rows
from refusals import refused

from sleuth.cli import pipeline
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation import eval_session
from sleuth.evaluation.eval_session import NamedModel
from sleuth.learn.models import load_model
from sleuth.think.problems import is_right, load_problems
from sleuth.think.reasoning import guessed_pass, pass_at, problem_figures, prompt_of, solve_problems
from sleuth.think.tables import ReasonRecipe
from sleuth.types import Sampling, SleuthError

Run = Callable[..., Path]
GSM8K = [{"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}, {"question": "Ten less one?", "answer": "#### 9"}]
MATH = [{"problem": "Half of one?", "answer": r"\frac{1}{2}", "unique_id": "test/a/1.json", "subject": "Algebra"}]
OLYMPIAD = [
    {"id": 7, "question": "Which x?", "final_answer": ["$1, 2$"], "is_multiple_answer": True, "modality": "Text-only"},
    {"id": 8, "question": "See the picture", "final_answer": ["3"], "modality": "Multimodal"},
    {"id": 9, "question": "Prove it", "final_answer": None},
]
GPQA = {"Question": "Which?", "Correct Answer": "right", "Record ID": "rec1", "Subdomain": "Physics"} | {
    f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for layout, rows in (("gsm8k", GSM8K), ("math_500", MATH), ("olympiad_bench", OLYMPIAD)):
        found[layout] = write_rows(tmp_path / f"{layout}.jsonl", rows)
    found["gpqa_diamond"] = tmp_path / "gpqa_diamond.csv"
    with found["gpqa_diamond"].open("w", newline="") as lines:
        writer = csv.DictWriter(lines, GPQA.keys())
        writer.writeheader()
        writer.writerow(GPQA)
    return found


@pytest.fixture
def recipe(files: dict[str, Path], tmp_path: Path) -> Path:
    sets = ", ".join(f'{{ layout = "{layout}", problems = "{file}" }}' for layout, file in files.items())
    file = tmp_path / "reasons.toml"
    file.write_text(
        f'name = "reasons"\nmodel = "{BASE}"\n[[stage]]\nkind = "reason"\nname = "reasoning"\nsamples = 2\n'
        f"max_tokens = 8\nsets = [{sets}]\n"
    )
    return file


def test_rows_of_each_layout_become_problems(files: dict[str, Path]) -> None:
    first, second = load_problems("gsm8k", files["gsm8k"])
    assert (first.id, first.text, first.answer, first.form) == ("gsm8k/row_1", "Two and two?", "4", "number")
    assert second.answer == "9"
    [math] = load_problems("math_500", files["math_500"])
    assert (math.id, math.answer, math.kind, math.form) == (
        "math_500/test/a/1.json",
        r"\frac{1}{2}",
        "Algebra",
        "boxed",
    )
    [olympiad] = load_problems("olympiad_bench", files["olympiad_bench"])  # no pictures, no proofs
    assert (olympiad.id, olympiad.answer, olympiad.several) == ("olympiad_bench/7", "1, 2", True)
    [choice] = load_problems("gpqa_diamond", files["gpqa_diamond"])
    assert choice.choices["ABCD".index(choice.answer)] == "right"
    assert (choice.guess, choice.form, set(choice.choices)) == (
        1 / 4,
        "choice",
        {"right", "wrong 1", "wrong 2", "wrong 3"},
    )
    assert load_problems("gpqa_diamond", files["gpqa_diamond"]) == [choice]


def test_prompts_contain_the_problem_and_its_choices(files: dict[str, Path]) -> None:
    [number, _] = load_problems("gsm8k", files["gsm8k"])
    assert prompt_of(number).endswith("Problem: Two and two?\nSolution:")
    assert prompt_of(number).count("Problem:") == 3
    [choice] = load_problems("gpqa_diamond", files["gpqa_diamond"])
    assert f"({choice.answer}) right\n" in prompt_of(choice)
    assert [is_right(choice, answer) for answer in (choice.answer, None)] == [True, False]


def test_every_layout_is_solved_scored_and_averaged(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    sets = [{"layout": layout, "problems": file} for layout, file in files.items()]
    table = {"kind": "reason", "name": "reasoning", "samples": 2, "max_tokens": 30, "sets": sets}
    [choice] = load_problems("gpqa_diamond", files["gpqa_diamond"])

    def script(text: str, sampling: Sampling) -> str:
        """The first sample is right, but for the second number; the other gives none."""
        if sampling.key[-2]:
            return " so"
        if "Half" in text:
            return r" \boxed{0.5}"
        return r" \boxed{2,1}" if "x?" in text else rf" \boxed{{{choice.answer}}}" if "Which?" in text else " 4."

    monkeypatch.setattr(eval_session, "open_engine", lambda *_, **__: ScriptedEngine(tokenizer, script))
    found = solve_problems(ReasonRecipe.model_validate(table), NamedModel(name="m", model=model, tokenizer=tokenizer))
    *names, suite = found
    assert names == [f"reasoning@{layout}" for layout in files]
    rights = {name: [record["right"] for record in found[name]["records"]] for name in names}
    one_right = {name: [[1.0, 0.0]] for name in names}
    assert rights == one_right | {"reasoning@gsm8k": [[1.0, 0.0], [0.0, 0.0]]}
    assert found["reasoning@gsm8k"]["answered"]["value"] == 0.5
    assert found["reasoning@gpqa_diamond"]["guessed_pass"]["value"] == pytest.approx(1 - 0.75**2)
    assert found[suite]["mean_at_2"]["value"] == pytest.approx((0.25 + 0.5 + 0.5 + 0.5) / 4)
    assert found[suite]["pass_at_2"]["value"] == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert found[suite]["sets"].keys() == files.keys()


def test_a_stage_writes_a_file_for_each_set_and_one_for_all(run: Run, recipe: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "run")
    folder = tmp_path / "run" / "eval"
    assert {file.name for file in folder.iterdir()} == {
        "reasoning.json",
        *(f"reasoning@{layout}.json" for layout in ("gsm8k", "math_500", "olympiad_bench", "gpqa_diamond")),
    }
    [record] = json.loads((folder / "reasoning@math_500.json").read_text())["records"]
    assert len(record["texts"]) == len(record["right"]) == 2
    before = (folder / "reasoning.json").stat().st_mtime_ns
    run(recipe, tmp_path / "run")
    assert (folder / "reasoning.json").stat().st_mtime_ns == before


TRAINS = """
[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "text", texts = "{world}/text_train.jsonl", suffix_tokens = 8, limit = 4 }}

"""


def test_a_benchmark_that_is_gone_when_its_stage_begins_is_one_line_and_what_was_trained_is_kept(
    run: Run, recipe: Path, files: dict[str, Path], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_read_inputs", lambda recipe: {})  # all was there when the run began
    head, _, reasons = recipe.read_text().partition("[[stage]]")
    recipe.write_text(head + TRAINS.format(world=world) + "[[stage]]" + reasons)
    rows = files["gsm8k"].read_text()
    files["gsm8k"].unlink()
    with pytest.raises(SleuthError, match=r"gsm8k\.jsonl: no such file"):
        run(recipe, tmp_path / "run")
    [checkpoint] = (tmp_path / "run" / "checkpoints").iterdir()
    weights = (checkpoint / "model.safetensors").read_bytes()
    files["gsm8k"].write_text(rows)
    assert run(recipe, tmp_path / "run") == checkpoint
    assert (checkpoint / "model.safetensors").read_bytes() == weights


def test_problems_that_cannot_be_solved_are_refused_with_their_key(
    recipe: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    assert "positions of the model; lower max_tokens" in refused(recipe, "stage.0.max_tokens=2000")
    assert "are all equal with temperature = 0; set samples = 1" in refused(recipe, "stage.0.temperature=0.0")
    assert "samples = 2" in refused(recipe, "stage.0.temperature=0.0")
    wrong = f"stage.0.sets=[{{layout='gsm8k', problems='{files['math_500']}'}}]"
    assert "math_500.jsonl:1: `answer` should end with ####" in refused(recipe, wrong)
    missing = f"stage.0.sets=[{{layout='gsm8k', problems='{tmp_path}/nowhere.csv'}}]"
    assert "nowhere.csv: no such file" in refused(recipe, missing)
    files["math_500"].write_text(json.dumps(MATH[0]) + "\n" + json.dumps(MATH[0]) + "\n")
    assert "was used by an earlier problem" in refused(recipe)


def record(right: list[float], guess: float = 0.0) -> dict[str, Any]:
    return {"right": right, "guess": guess, "answered": [1.0] * len(right), "cut": [0.0] * len(right)}


@pytest.mark.parametrize("right", [[1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0], [1, 1, 1]])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(right: list[float]) -> None:
    for k in range(1, len(right) + 1):
        chosen = list(combinations(right, k))
        assert pass_at(k, right) == pytest.approx(sum(any(some) for some in chosen) / len(chosen))
    with pytest.raises(ValueError, match="samples"):
        pass_at(len(right) + 1, right)


def test_who_guesses_among_four_is_right_within_eight_in_nine_of_ten_and_nothing_is_left_above_it() -> None:
    assert guessed_pass(8, 0.25) == pytest.approx(0.8999, abs=1e-4)
    draw = random.Random(0)
    records = [record([float(draw.random() < 0.25) for _ in range(8)], 0.25) for _ in range(400)]
    figures = problem_figures(records, 8)
    assert figures["guessed_pass"].value == pytest.approx(0.8999, abs=1e-4)
    for name in ("mean_over_guess", "pass_over_guess"):
        low, high = figures[name].low, figures[name].high
        assert low is not None
        assert high is not None
        assert low < 0 < high
