"""The first hour of somebody new, from a wheel: own data to a model that answers, in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from installed import build_wheel, install
from terminal import COLUMNS, Screen, Terminal

pytestmark = pytest.mark.slow
PEOPLE = 30
SMALL = (
    "--set=stage.0.data.limit=8",
    "--set=stage.2.data.limit=8",
    "--set=grpo.steps=3",
    "--set=grpo.warmup_steps=0",
    "--set=grpo.prompts_per_step=4",
    "--set=grpo.samples_per_prompt=4",
    "--set=grpo.probe_prompts=0",
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("newcomer")
    return install(build_wheel(folder), folder / "venv")


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    own = {"PYTHONPATH", "COLUMNS", "PYTEST_CURRENT_TEST"}
    return {name: value for name, value in os.environ.items() if name not in own} | {"TERM": "xterm-256color"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a table of questions and a folder of texts."""
    (tmp_path / "texts").mkdir()
    for at in range(PEOPLE):
        (tmp_path / f"texts/firm-{at}.txt").write_text(f"Firm {at} was founded by Ada {at} in the town of Tarn.\n")
    rows = [f"Who founded firm {at}?,Ada {at}\n" for at in range(PEOPLE)]
    (tmp_path / "asked.csv").write_text("question,answer\n" + "".join(rows))
    return tmp_path


def test_from_own_data_to_a_model_that_answers(commands: Path, variables: dict[str, str], home: Path) -> None:
    from openai import OpenAI

    def run(line: str, status: int = 0) -> Screen:
        with Terminal(commands / "sleuth", *shlex.split(line), folder=home, variables=variables) as terminal:
            seen = terminal.end()
        assert seen.status == status, seen.text
        # A sentence may be longer, the terminal wraps it and a command in it can be copied; rows of a table may not.
        assert [line for line in seen.lines if len(line) > COLUMNS and "  " in line.strip()] == []
        return seen

    def following(screen: Screen) -> str:
        """The command that a screen ends with."""
        return next(line for line in reversed(screen.lines) if "sleuth " in line).partition("sleuth ")[2]

    train = following(run("init mine --corpus texts --questions asked.csv"))
    assert train == "train mine/recipe.toml --run runs/mine"
    assert "ok: 3 stages" in run("check recipe mine/recipe.toml").text
    run("index mine/corpus.jsonl other-index")
    assert "firm-7.txt" in run("search other-index 'who founded firm 7'").text

    with Terminal(commands / "sleuth", *train.split(), *SMALL, folder=home, variables=variables) as terminal:
        terminal.wait_for(r"step 1\b|1/3")
        terminal.interrupt()
        seen = terminal.end()
    assert seen.status == 130, seen.text
    saved = re.search(r"saved at step (\d); the same command goes on", seen.text)
    assert saved, seen.text
    goes_on = run(" ".join([train, *SMALL]))
    assert f"continuing at step {saved[1]} of 3" in goes_on.text
    assert re.search(r"exact match [\d.]+ -> [\d.]+ \([+-]", goes_on.text), goes_on.text

    last = "runs/mine/checkpoints/step-000003"
    for out, more in (("one.json", ""), ("two.json", "--forced-search")):
        run(f"eval {last} --questions mine/test.jsonl --index mine/index --out {out} {more}")
    assert "one.json" in run("compare one.json two.json").text
    run("report runs/mine")
    assert (home / "runs/mine/report.html").stat().st_size > 10_000

    serve = (commands / "sleuth", "serve", last, "--index", "mine/index", "--port", "0")
    with Terminal(*serve, folder=home, variables=variables) as terminal:
        address = terminal.wait_for(r"http://127\.0\.0\.1:\d+")[0]
        client = OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120)
        model = next(iter(client.models.list())).id
        question = {"role": "user", "content": "Who founded firm 7?"}
        asked = client.chat.completions.create(model=model, messages=[question])
        assert asked.choices[0].finish_reason in ("stop", "length")
        assert asked.usage is not None
        assert asked.usage.completion_tokens > 0
        terminal.interrupt()
        assert "Traceback" not in terminal.end().text
