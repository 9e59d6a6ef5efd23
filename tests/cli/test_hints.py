"""Fifty mistakes of a first day: the line says what is right, and a command that it names can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from verb import sleuth, write_rows

from sleuth.cli.app import app
from sleuth.recipe import load_recipe
from sleuth.recipe.draft import dump_toml

MODEL = Path(__file__).parents[2] / "models" / "tiny-base"
EVAL = f"eval {MODEL} --questions q.jsonl"
HINTS = {
    "trian demo": "Did you mean 'train'?",
    "check recipes demo": "Did you mean 'recipe'?",
    "help": "see sleuth -h",
    "demo --step 50": "--set",
    "train demo --set grpo.steps 50": "see sleuth train -h",
    "ask docs Who built it?": "need quotes; got unexpected extra argument",
    "ask 'Who built it?'": "the folder comes first: sleuth ask FOLDER 'Who built it?'",
    "ask docs": 'sleuth ask FOLDER "Who ...?"',
    "ask docs/a.txt Who?": "docs/a.txt: is a file; name its folder",
    "ask empty Who?": "no document with text in this folder",
    "ask docs Who? --model nope": "a hub id would read OWNER/NAME",
    "train demoo": "did you mean demo?",
    "plan search-0.6b-24gb": "did you mean search_0.6b_24gb?",
    "reproduce search-r1-slim --tiny": "did you mean search-r1-slime?",
    "sweep demo": "train a recipe without arms with `sleuth train`",
    "train tiny/thinking_sweep": "train them with `sleuth sweep tiny/thinking_sweep`",
    "plan demo --card rtx4090": "the nearest is rtx-4090",
    "plan demo --card 24": "the nearest is 24GB",
    "train table.csv": "a recipe is a TOML file: `sleuth recipes demo` prints one",
    "train runs/small": "the folder of a run, whose recipe is runs/small/recipe.toml",
    "train small.toml --run runs/small --set grpo.steps=9": "choose another folder with --run",
    "check recipe small.toml --set grpo.step=50": "the nearest is stage.0.steps",
    "check recipe small.toml --set grp.steps=50": "there are grpo",
    "check recipe small.toml --set grpo.env.kind=serach": '"search"',
    "check recipe small.toml --set grpo.env.dialect=search-r1": "search_r1",
    "check recipe small.toml --set grpo.env.prompt=plian": "plain",
    "check recipe small.toml --set grpo.reward=answer": 'a list, [{ kind = "answer" }]',
    "check recipe small.toml --set trackers=[wandb]": """a shell needs quotes: 'trackers=["..."]'""",
    """check recipe small.toml --set 'trackers=["wandb"]'""": 'pip install "sleuth[trackers]"',
    "check recipe demo": "make one with `sleuth index runs/world/corpus.jsonl runs/world/index`",
    "check judge small.toml": "is a recipe; should hold judge alone",
    "check judge judge.toml": "judge.kind is missing: it says what this table is, one of 'lexical', 'http'",
    "check judge keyless.toml": "there is no such variable in the environment",
    f"{EVAL} --index made": "there is one in made/index",
    f"{EVAL} --index made/corpus.jsonl": "make one of it with `sleuth index made/corpus.jsonl INDEX`",
    f"eval {MODEL} --questions bare.jsonl": "expected a list of strings such as",
    f"eval {MODEL} --questions table.csv": "the first line of a table names its columns",
    "eval small.toml --questions q.jsonl": "a model is a folder, with config.json and tokenizer.json",
    "eval untokenized --questions q.jsonl": "tokenizer.json is expected beside the weights",
    "eval runs/small --questions q.jsonl": "a run folder, not a model; give one of its checkpoints",
    "report runs": "give a folder that `sleuth train` wrote, such as runs/small",
    "annotate questions docs out": "`sleuth learn docs` makes questions of documents",
    "get wiki18": "there are wiki-18, nq",
}
"""The line, and what a newcomer has to read in the one that answers it."""
RECIPE = f"""
name = "small"
model = "{MODEL}"
[[stage]]
kind = "grpo"
steps = 4
prompts_per_step = 4
samples_per_prompt = 8
learning_rate = 1e-3
context = 400
data = {{ questions = "q.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "made/index" }}
reward = [{{ kind = "answer" }}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, a corpus with its index, questions, a recipe and a run of it."""
    home = tmp_path_factory.mktemp("newcomer")
    for name in ("docs", "empty", "made", "runs/small/checkpoints/step-000004", "untokenized"):
        (home / name).mkdir(parents=True)
    (home / "docs/a.txt").write_text("The boiler was built in 1987 by Harke and Sons.\n")
    corpus = write_rows(home / "made/corpus.jsonl", [{"id": "1", "contents": '"T"\nsoup'}])
    assert sleuth("index", corpus, home / "made/index").exit_code == 0
    write_rows(home / "q.jsonl", [{"id": str(at), "question": "Who?", "golden_answers": ["x"]} for at in range(4)])
    write_rows(home / "bare.jsonl", [{"question": "Who?"}, {"question": "Where?"}])
    (home / "table.csv").write_text("Who?,Ada\nWhere?,Tarn\n")
    served = '[judge]\nmodel = "x"\nurls = ["http://127.0.0.1:1/v1"]\n'
    (home / "judge.toml").write_text(served)
    (home / "keyless.toml").write_text(f'{served}kind = "http"\nkey_variable = "NO_SUCH_KEY"\n')
    for name in ("config.json", "model.safetensors"):
        (home / "untokenized" / name).symlink_to(MODEL / name)
    (home / "small.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        (home / "runs/small/recipe.toml").write_text(dump_toml(load_recipe("small.toml")))
    return home


def commands_in(hint: str) -> Iterator[list[str]]:
    """The words after `sleuth` of each command that a hint names."""
    for quoted, usage in re.findall(r"`sleuth ([^`]+)`|see sleuth ([a-z -]*)-h", hint):
        yield shlex.split(quoted or usage)


def require_parses(words: list[str]) -> None:
    """Fails for a verb or an option that there is not, and for an argument too few."""
    verb: Any = get_command(app)
    while words and hasattr(verb, "commands"):
        verb, words = verb.commands[words[0]], words[1:]
    if words:
        verb.make_context("sleuth", list(words))


@pytest.mark.parametrize("line", HINTS)
def test_the_hint_leads_to_what_is_right(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    done = sleuth(*shlex.split(line))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert any(HINTS[line] in one for one in done.stderr.splitlines() if one.startswith("error: ")), done.stderr
    for words in commands_in(done.stderr):
        require_parses(words)


def test_each_example_of_the_help_parses() -> None:
    from sleuth.cli.app import EXAMPLES

    for line in EXAMPLES:
        require_parses(shlex.split(line.partition(" > ")[0]))
