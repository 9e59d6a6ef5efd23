"""`sleuth reproduce`: what is told before a run, rows in the published layouts, and a twin that was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from verb import printed_json, refusal, sleuth, write_rows

from sleuth.cite.dialect import REFINERS
from sleuth.cite.env import RefineEnv
from sleuth.cli import needs
from sleuth.cli.published_rows import write_published_rows
from sleuth.cli.reproduce import _recipes_of, _require_rows, _settings, _train
from sleuth.data.questions import load_questions, select_tasks
from sleuth.episodes.library import read_prompt
from sleuth.host.hardware import read_cards
from sleuth.recipe.data import PlayedQuestionsRecipe
from sleuth.recipe.published import PublishedRow, PublishedRun, read_system, system_names
from sleuth.report.published import published_table
from sleuth.runs.metrics import MetricsFile
from sleuth.think.tables import ThoughtTextRecipe
from sleuth.think.thoughts import thought_documents
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[2]
ONE_STEP = ("warmup_steps=0", "prompts_per_step=2", "samples_per_prompt=4", "probe_prompts=0", "save_every=1")
REFINER = [
    *("stage.0.steps=2", "stage.0.warmup_steps=0", "stage.0.save_every=1", "stage.1.data.limit=4"),
    *("stage.2.steps=4", *(f"stage.2.{key}" for key in ONE_STEP), "stage.2.red_team_every=0", "stage.3.data.limit=4"),
]
SEARCH = [
    *("stage.0.data.per_set=2", "stage.1.prompts=48", "stage.1.steps=2", "stage.1.warmup_steps=0"),
    *("stage.1.save_every=1", "stage.2.data.per_set=2", "stage.3.steps=2", *(f"stage.3.{key}" for key in ONE_STEP)),
    "stage.4.data.per_set=2",
]
THINKING = [
    *(f"{stage}.{key}" for stage in ("pretraining", "continued") for key in ("steps=2", "warmup_steps=0")),
    *("pretraining.save_every=1", "continued.save_every=1", "thinking.steps=2", "thinking.warmup_steps=0"),
    *("thinking.save_every=1", "thinking.held_out.limit=4", "online_dpo.steps=1", "online_dpo.warmup_steps=0"),
    *(
        "online_dpo.prompts_per_step=2",
        "against_base.data.limit=4",
        "gain.steps=1",
        *(f"gain.{key}" for key in ONE_STEP),
    ),
    *(f"{stage}.data.limit=4" for stage in ("gate", "gate_after", "thoughts")),
    *("gate.max_no_signal_fraction=1.0", "gate.max_missing_fraction=1.0", "thoughts.held_out.limit=4"),
    "reasoning.sets=[{layout='math_500',problems='runs/world/arithmetic_test.jsonl',limit=2}]",
]


@pytest.mark.ranks
def test_the_ranks_of_a_run_for_several_cards_train_it_with_the_flags_of_the_command(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/world").symlink_to(world)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "cards_of", lambda recipe: read_cards("2 x 80 GB"))
    run = PublishedRun(name="rubric", recipe="tiny/refiner")
    settings = [*REFINER, "stage.0.optimiser=adamw"]  # for Muon is of one rank
    recipes = dict(_recipes_of(run, settings, False))
    _train(run, settings, recipes, tmp_path / "trained", False, ["--quiet", "--no-code"])
    manifest = json.loads((tmp_path / "trained/manifest.json").read_text())
    assert len(manifest["costs"]["careless"]["ranks_memory_bytes"]) == 2
    assert (tmp_path / "trained/checkpoints/step-000006").is_dir()
    assert "grpo 1/" not in capfd.readouterr().err  # of the bar, which --quiet leaves out
    own = [*settings, 'stage.2.reward=[{kind="python", function="mine:reward"}]']
    with pytest.raises(typer.Exit):
        _train(run, own, recipes, tmp_path / "refused", False, ["--no-code"])
    assert "--no-code" in capfd.readouterr().err


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("name", system_names())
def test_every_row_of_a_table_is_measured_by_a_stage_of_its_run(
    name: str, tiny: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("nq/test.jsonl", "hotpotqa/dev.jsonl"):  # that `--tiny` writes before it looks
        write_rows(tmp_path / "runs/world/sets" / place, [])
    monkeypatch.chdir(tmp_path)
    system = read_system(name)
    runs = [run for run in system.run if run.twin or not tiny]
    settings = _settings(runs, tiny, [])
    recipes = {run.name: dict(_recipes_of(run, settings[run.name], tiny)) for run in runs}
    _require_rows(name, system, recipes, tiny)


def test_a_key_of_a_stage_that_some_runs_have_changes_these_and_one_of_none_is_refused() -> None:
    runs = [run for run in read_system("reason-over-search").run if run.name in ("rules", "released-rules")]
    changes = ["grpo.steps=2", "released.context=64", "seed=3"]
    settings = _settings(runs, False, changes)
    assert settings == {"rules": ["grpo.steps=2", "seed=3"], "released-rules": changes[1:]}
    said = sleuth("reproduce", "reason-over-search", "--check", "--set", "grop.steps=2").stderr
    assert "no stage is named grop" in said


def test_a_name_that_is_not_there_gets_the_nearest_and_a_list_without_one() -> None:
    assert "did you mean search-r1-slime?" in refusal("reproduce", "search-r1-slim")
    assert set(printed_json("reproduce")["systems"]) == set(system_names())
    assert refusal("reproduce", "search-r1-slime", "--arm", "x") == "--arm x: no such run; there are slime, format"


def test_a_system_of_ones_own_that_is_wrong_is_a_line_for_each_fault(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    run = '[[run]]\nname = "a"\nrecipe = "tiny/refiner"\ntwin = "tiny/refiner"\n'
    row = '[[row]]\nabout = "x"\nfigure = "{}"\npublished = 3.0\nof = {}\n'
    own.write_text(f'title = "t"\nsource = "s"\nnoet = 1\n{run}{row.format("b/trained:em", 7)}')
    said = sleuth("reproduce", own).stderr.splitlines()
    assert [line.partition("mine.toml: ")[2].partition(" ")[0] for line in said] == ["noet", "row.0.figure", "row.0.of"]
    for figure, words in (
        ("a/nope:em", "no stage measures nope; there are taught, trained"),
        ("a/careless:em", "no stage measures careless"),
        ("a/taught@nq:citation_f1", "taught has no set nq"),
        ("a/taught:win_rate", "taught has no figure win_rate"),
        ("a/trained:citation_f2", "trained has no figure citation_f2; did you mean citation_f1?"),
        ("a/metrics:rewardmean", "metrics has no figure rewardmean; did you mean reward_mean?"),
    ):
        own.write_text(f'title = "t"\nsource = "s"\n{run}{row.format(figure, 0)}')
        assert words in refusal("reproduce", own)


def test_all_that_is_missing_is_told_at_once_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(repository: str, kind: str) -> object:
        raise SleuthError(f"{repository}: cannot be downloaded from the hub: no route")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "repository_files", nothing)
    monkeypatch.setattr(needs, "entry_needs", lambda entry, folder, dense: nothing("wiki", "dataset"))
    result = sleuth("reproduce", "search-r1-slime", "--check")
    assert result.exit_code == 2
    missing = [line for line in result.stdout.splitlines() if line.startswith("MISSING")]
    for words in ("model Qwen/Qwen2.5-3B", "suite nq_hotpotqa", "train.parquet", "sleuth get wiki-18", "4 x 80 GB"):
        assert any(words in " ".join(result.stdout.split()) for _ in missing), words
    assert "sleuth prompts import search_r1_base FILE" in " ".join(result.stdout.split())
    assert not (tmp_path / "runs").exists()


def test_what_the_hub_has_is_told_with_size_and_licence_and_a_prompt_comes_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(repository: str, kind: str) -> tuple[dict[str, int], str]:
        held = {"model.safetensors": 6_000_000_000, "train.parquet": 200_000_000, "nq/test.jsonl": 5, "other": 10**12}
        return held | {"hotpotqa/dev.jsonl": 7}, "apache-2.0"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(needs, "repository_files", files)
    found = {
        one["what"]: one
        for one in json.loads(sleuth("reproduce", "search-r1-slime", "--check", "--json").stdout)["needs"]
    }
    rows = found["rows hf://PeterJinGo/nq_hotpotqa_train/train.parquet"]
    assert (rows["state"], rows["bytes"], rows["detail"]) == ("fetch", 200_000_000, "200.0 MB, licence apache-2.0")
    assert found["suite nq_hotpotqa"]["bytes"] == 12
    assert found["prompt search_r1_base"]["state"] == "fetch"
    assert found["prompt search_r1_retry"]["state"] == "missing"


def test_rows_in_the_published_layouts_are_the_same_questions_and_evidence(world: Path, tmp_path: Path) -> None:
    for name in ("qa_train", "qa_test", "refiner_train", "refiner_test", "hasty_train"):
        (tmp_path / f"{name}.jsonl").write_bytes((world / f"{name}.jsonl").read_bytes())
    write_published_rows(tmp_path)
    ours = load_questions(world / "qa_train.jsonl")
    theirs = load_questions(tmp_path / "nq_hotpotqa_train/train.parquet")
    assert [(one.question, one.golden_answers) for one in theirs] == [
        (one.question, one.golden_answers) for one in ours
    ]
    assert {one.source for one in theirs} == {"nq", "hotpotqa"}
    sets = [load_questions(tmp_path / f"sets/{place}.jsonl") for place in ("nq/test", "hotpotqa/dev")]
    assert sum(map(len, sets)) == len(load_questions(world / "qa_test.jsonl"))
    refined = load_questions(world / "refiner_train.jsonl")
    rows = PlayedQuestionsRecipe(questions=tmp_path / "refiner_rl/train.jsonl", ask_with="prompt")
    for one, other in zip(refined, select_tasks(rows), strict=True):
        assert one.evidence is not None
        assert other.evidence is not None
        assert (one.question, one.rubrics) == (other.question, other.rubrics)
        assert one.evidence.snippets == other.evidence.snippets
        envs = [RefineEnv(task, REFINERS["thinking"], read_prompt("bare")) for task in (one, other)]
        texts = ["".join(piece.text for piece in asyncio.run(env.open()).pieces) for env in envs]
        assert texts[0] == texts[1]
    hasty, companion = (
        ThoughtTextRecipe(kind="thoughts", texts=file)
        for file in (world / "hasty_train.jsonl", tmp_path / "companion/train.jsonl")
    )
    shown = [[(one.text, one.thoughts) for one in thought_documents(data)] for data in (hasty, companion)]
    assert shown[0] == shown[1]


def test_a_row_has_its_published_interval_and_ours_where_it_was_measured(tmp_path: Path) -> None:
    system = read_system("search-r1-slime")
    (tmp_path / "slime/eval").mkdir(parents=True)
    figure = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}
    (tmp_path / "slime/eval/base@nq.json").write_text(json.dumps({"score_slime": figure}))
    first, second, *_ = published_table(system, {"slime": tmp_path / "slime"}, tiny=False)
    assert first.cells() == ["0.162 [0.150, 0.174]", "0.500 [0.400, 0.600]", "10"]  # Wilson's, of 3,610
    assert second.cells() == ["0.458 [0.441, 0.474]", "not measured", ""]
    peak = system.model_copy(update={"row": (PublishedRow(about="peak", figure="slime/metrics:reward_mean"),)})
    steps = [{"stage": "grpo", "step": at, "reward_mean": 1.0 if 30 <= at < 40 else 0.0} for at in range(60)]
    (tmp_path / "slime/metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert MetricsFile(tmp_path / "slime/metrics.jsonl").rows() == steps
    (row,) = published_table(peak, {"slime": tmp_path / "slime"}, tiny=False)
    assert row.cells() == ["", "0.500", "60"]  # 10 of the best 20


@pytest.mark.parametrize(
    ("name", "settings", "places", "last"),
    [
        pytest.param(
            "refiner-rubric",
            REFINER,
            ("rubric/checkpoints/step-000001", "rubric/eval/taught.json", "rubric/checkpoints/step-000004"),
            "rubric/checkpoints/step-000006",
            marks=pytest.mark.sentinel,
        ),
        pytest.param(
            "refiner-balanced",
            REFINER,
            (
                "balanced/checkpoints/step-000002",
                "balanced/checkpoints/step-000003",
                "balanced/checkpoints/step-000005",
            ),
            "balanced/checkpoints/step-000006",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "search-r1-slime",
            SEARCH,
            ("slime/eval/base.json", "slime/checkpoints/step-000001", "slime/checkpoints/step-000003"),
            "slime/checkpoints/step-000004",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "reason-over-search",
            SEARCH,
            ("rules/checkpoints/step-000002", "rules/eval/trained.json", "example/checkpoints/step-000003"),
            "example/checkpoints/step-000004",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "interleaved-thinking",
            THINKING,
            ("arms/seed-0/untouched/eval/thoughts.json", "arms/seed-0/base_shown", "arms/seed-0/improved_shown"),
            "arms/seed-0/improved_shown_rewarded/checkpoints/step-000006",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_twin_that_was_killed_three_times_ends_in_the_same_bytes(
    name: str, settings: list[str], places: tuple[str, ...], last: str, tmp_path: Path
) -> None:
    one, other = (tmp_path / folder / f"runs/{name}-tiny" for folder in ("one", "other"))
    for place in places:
        _reproduce(name, settings, tmp_path / "one", lambda place=place: (one / place).exists())
    _reproduce(name, settings, tmp_path / "one")
    _reproduce(name, settings, tmp_path / "other")
    for file in ("reproduction.html", "reproduction.json", f"{last}/model.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    assert len(json.loads((one / "reproduction.json").read_text())["rows"]) > 3


def _reproduce(name: str, settings: list[str], folder: Path, until: Callable[[], bool] | None = None) -> None:
    """Runs the twin in a folder to its end, or kills it once `until` is true."""
    folder.mkdir(exist_ok=True)
    changed = [f"--set={key}" for key in settings]
    command = [sys.executable, "-m", "sleuth", "reproduce", name, "--tiny", "--quiet", *changed]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL) as process:
        while until is not None and not until():
            assert process.poll() is None
            time.sleep(0.02)
        if until is not None:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == (0 if until is None else -signal.SIGKILL)
