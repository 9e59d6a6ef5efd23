"""A run starts the server of its judge, gets its verdicts although it dies, and leaves none behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from chat_server import MODEL
from continuations import BASE
from real_vllm import VLLM
from run_files import rows
from test_judged_stage import SHORT
from transformers import AutoConfig, AutoModelForCausalLM

from sleuth.engines.launch import Launch
from sleuth.judges.factory import LAUNCHER
from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.render import load_tokenizer
from sleuth.training.servers import cards_of, require_launchable, served_launch
from sleuth.types import SleuthError

ANSWERED = 'POST /v1/chat/completions HTTP/1.1" 200'
"""In vLLM's log."""
SLOW = 3.0
"""Seconds that its second start takes."""
JUDGE = """#!{python}
import json, os, sys, time
time.sleep({slow} * os.path.exists({pids!r}))
sys.path.insert(0, {tests!r})
from chat_server import ChatServer, part, says, scored
option = lambda name: sys.argv[sys.argv.index(name) + 1]
with open({pids!r}, "a") as pids:
    print(os.getpid(), file=pids)
with open({told!r}, "w") as told:
    json.dump(sys.argv[1:], told)
answer = lambda body: says(scored(len(part(body, "answer")) % 3))
with ChatServer(answer=answer, port=int(option("--port"))).running():
    time.sleep(600)
"""


@pytest.fixture
def vllm(tmp_path) -> Path:
    """A command `vllm` that serves the scripted judge of `chat_server`."""
    command = tmp_path / "vllm"
    files = {name: str(tmp_path / name) for name in ("pids", "told")}
    command.write_text(JUDGE.format(python=sys.executable, tests=str(Path(__file__).parents[1]), slow=SLOW, **files))
    command.chmod(0o755)
    return command


def judged_by(command: Path | str, model: str = MODEL, *keys: str) -> list[str]:
    """Overrides: two rewards that ask the judge whose server the run starts."""
    judge = "{" + ", ".join([f"kind='http', launch='vllm', command='{command}', model='{model}'", *keys]) + "}"
    return [
        "stage.0.data.limit=1",
        "stage.1.prompts_per_step=2",
        "stage.1.samples_per_prompt=4",
        "stage.1.env.turn_tokens=12",
        f"stage.1.reward=[{{kind='rubric', own=false, static='refiner', judge={judge}}},"
        f"{{kind='citation', judge={judge}}}]",
        "stage.2.data.limit=1",
    ]


def kill_when_asked(folder: Path) -> None:
    """Kills the judge once the first step is scored."""
    deadline = time.monotonic() + 120
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and '"step": 1' in metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(int((folder / "pids").read_text().split()[0]), signal.SIGKILL)


@pytest.mark.slow  # a run, and two starts of a server
@pytest.mark.sentinel
def test_a_run_starts_its_judge_once_and_misses_no_verdict_when_it_dies(run, recipe_file, vllm, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "run"
    killing = threading.Thread(target=kill_when_asked, args=(tmp_path,))
    killing.start()
    run(recipe_file, folder, *judged_by(vllm, MODEL, f"seconds={SLOW / 8}"), *SHORT)  # of which four are half of that
    killing.join()
    steps = rows(folder)
    assert len(steps) == 2
    assert [row["judge_missing"] + row["judge_invalid"] for row in steps] == [0, 0]
    assert sum(row["judge_asked"] for row in steps) > 0
    assert all(0 < row["rubric"] <= 1 for row in steps)
    assert "is started again" in (folder / "servers" / f"vllm-{MODEL}.log").read_text()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2  # one server for both rewards, and its successor
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            pytest.fail(f"process {pid} is left")


def test_what_launches_a_judge_is_checked_before_the_run(recipe_file, vllm, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    absent = load_recipe(recipe_file, judged_by("no-such-vllm")).stage[1]
    with pytest.raises(SleuthError, match=rf"{MODEL}: command = 'no-such-vllm': no such program here"):
        require_launchable(absent)
    recipe = load_recipe(recipe_file, judged_by(vllm, MODEL, "cards=[1]"))
    [judge] = recipe.stage[1].launched()  # of two rewards
    with pytest.raises(SleuthError, match=r"names GPUs, and its server runs on the CPU"):
        served_launch(recipe, judge, ranks=1)
    with pytest.raises(SleuthError, match=r"exclude each other"):
        load_recipe(recipe_file, judged_by(vllm, MODEL, "urls=['http://a:1']"))
    with pytest.raises(SleuthError, match=r"only `sleuth train` starts judge-8b"):
        LAUNCHER.urls_of(judge)


def test_a_judge_on_two_cards_splits_its_model_and_leaves_the_others_to_the_policy(recipe_file, vllm, monkeypatch):
    split = Launch(kind="vllm", program=("vllm",), model="m", port=1, context=8, dtype="auto", requests=1, card="6,7")
    assert split.command[-2:] == ["--tensor-parallel-size", "2"]
    assert split.environment({})["CUDA_VISIBLE_DEVICES"] == "6,7"
    recipe = load_recipe(recipe_file, [*judged_by(vllm, MODEL, "cards=[6, 7]"), "stage.1.engine={launch='vllm'}"])
    engine = recipe.stages_of(GrpoRecipe)[1].engine
    assert engine is not None
    assert cards_of(engine, 8, 4, recipe.served_cards(8)) == [4, 5]


@pytest.mark.servers
def test_a_real_vllm_judges_for_the_run_that_started_it_and_comes_back(run, recipe_file, tmp_path):
    """A random model judges, which seldom ends its verdict: what it did not say is missing, and the run stops
    rather than train on zeros."""
    config = AutoConfig.from_pretrained(BASE, max_position_embeddings=4096)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "judge")
    load_tokenizer(str(BASE)).save_pretrained(tmp_path / "judge")
    killing = threading.Thread(target=kill_when_answered, args=(tmp_path / "run" / "servers",))
    killing.start()
    with pytest.raises(SleuthError, match=r"scores are missing \(the judge gave no verdict: twice no verdict"):
        run(recipe_file, tmp_path / "run", *judged_by(VLLM, str(tmp_path / "judge"), "max_tokens=64"), *SHORT)
    killing.join()
    [log] = (tmp_path / "run" / "servers").glob("*.log")
    assert ANSWERED in log.read_text().partition("is started again")[2]
    left = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.parent.exists()]
    assert not [line for line in left if str(tmp_path / "judge").encode() in line]


def kill_when_answered(folder: Path) -> None:
    """Kills the judge once it has answered a question."""
    deadline, said = time.monotonic() + 300, ""
    while ANSWERED not in said and time.monotonic() < deadline:
        time.sleep(0.05)
        said = "".join(log.read_text() for log in folder.glob("*.log"))
    os.kill(int(re.findall(r"APIServer pid=(\d+)", said)[0]), signal.SIGKILL)
