from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sleuth import __version__
from sleuth.cli.app import Verbs
from sleuth.runs.progress import ProgressBar, progress_bar
from sleuth.types import RetrievalFailed, SleuthError


def ending(error: BaseException) -> tuple[int, str]:
    """Exit status and stderr of a verb that raises."""
    app = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @app.command("fail")
    def fail() -> None:
        raise error

    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["fail"])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (SleuthError("q.jsonl:3: no `question`"), 2, "error: q.jsonl:3: no `question`\n"),
        (SleuthError("two\nlines"), 2, "error: two lines\n"),
        (SleuthError("one thing", "another"), 2, "error: one thing\nerror: another\n"),
        (RetrievalFailed("the index does not answer"), 1, "error: the index does not answer\n"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 1, "error: runs/a: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_each_failure_has_its_status_and_one_line_per_problem(error: BaseException, status: int, line: str) -> None:
    assert ending(error) == (status, line)


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    app = typer.Typer(cls=Verbs)
    app.command("divide")(lambda: 1 / 0)
    app.command("other")(lambda: None)
    assert isinstance(CliRunner().invoke(app, ["divide"]).exception, ZeroDivisionError)


HEAVY = (
    "torch",
    "transformers",
    "numba",
    "numpy",
    "pyarrow",
    "tantivy",
    "aiohttp",
    "huggingface_hub",
    "starlette",
    "rich",
)


def output_of(folder: Path, script: str) -> str:
    """What a script prints that runs verbs in a process of its own."""
    head = f"""
import sys
from typer.testing import CliRunner
from sleuth.cli.app import Commands, app, sections
HEAVY = {HEAVY}
def run(*arguments):
    return CliRunner().invoke(app, arguments)
def loaded(*names):
    return [name for name in names if name in sys.modules]
"""
    command = [sys.executable, "-c", head + script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_help_of_no_verb_imports_anything_heavy(tmp_path: Path) -> None:
    script = """
for verb in ("", *Commands(), "prompts import", "annotate rubrics", "check recipe", "check data"):
    assert run(*verb.split(), "--help").exit_code == 0
print(run("--version").stdout, loaded(*HEAVY, "sleuth.recipe"))
"""
    assert output_of(tmp_path, script) == f"sleuth {__version__}\n []\n"


@pytest.mark.parametrize("triton", [True, False])
def test_the_last_collection_frees_what_triton_would_print_as_leaked(tmp_path: Path, triton: bool) -> None:
    script = f"""
import atexit, gc, types
atexit.register(lambda: print(gc.get_freeze_count() > 1_000))
from sleuth.training.heavy import freeze_loaded
if {triton}:
    sys.modules["triton"] = types.ModuleType("triton")
freeze_loaded()
"""
    assert output_of(tmp_path, script) == f"{not triton}\n"


def test_a_verb_imports_no_other_verb(tmp_path: Path) -> None:
    script = """
run("world", "--help")
places = [place for verbs in sections().values() for verb in verbs.values() for place in verb.values()]
print(loaded(*{place.partition(":")[0] for place in places}))
"""
    assert output_of(tmp_path, script) == "['sleuth.cli.shipped']\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sleuth tra", ["train"]),
        ("sleuth train --qu", ["--quiet"]),
        ("sleuth train search_0.6b_d", ["search_0.6b_distilled"]),
        ("sleuth recipes tiny/refiner_c", ["tiny/refiner_credit"]),
        ("sleuth plan demo --card h2", ["h200-141"]),
        ("sleuth eval MODEL --dialect qu", ["quoting"]),
    ],
)
def test_a_shell_completes_verbs_options_recipes_cards_and_dialects(
    tmp_path: Path, words: str, found: list[str]
) -> None:
    asked = {"_SLEUTH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    script = f"import os; os.environ.update({asked}); app(prog_name='sleuth')"
    assert output_of(tmp_path, script).split() == found


RECIPE = """
name = "r"
model = "here"
[[stage]]
kind = "evaluate"
name = "base"
context = 64
data = { questions = "nope.jsonl" }
env = { kind = "search", dialect = "sleuth", prompt = "plain", index = "nope" }
"""


def test_a_wrong_input_is_reported_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    (tmp_path / "here").mkdir()
    (tmp_path / "q.jsonl").touch()
    (tmp_path / "arms.toml").write_text('name = "a"\n[[arm]]\nname = "b"\nstages = ["r.toml:base"]\n')
    (tmp_path / "judge.toml").write_text('[judge]\nkind = "nli"\nmodel = "absent"\n')
    mistakes = {
        "train nope.toml": "nope.toml: no such recipe",
        "train r.toml": 'stage.0.data.questions = "nope.jsonl": no such file',
        "check recipe r.toml": 'stage.0.env.index = "nope": no index here',
        "sweep arms.toml": "table is missing",
        "replay nope 3": "nope: holds no run",
        "rescore nope --reward r.toml": "r.toml: is a recipe; should hold reward",
        "check judge judge.toml": 'judge.kind = "nli" was deleted: serve a judge',
        "eval absent --questions q.jsonl": "absent: no such folder here",
        "win-rate here nope.toml": "nope.toml: no such recipe",
        "probe here --questions nope.jsonl": "nope.jsonl: no such file",
        "probe-thoughts here r.toml": 'no stage of kind = "probe"',
        "serve absent": "absent: no such folder here",
        "export absent --gguf": "absent: no such folder",
        "merge nope out": "nope: does not exist; name a verl actor folder",
        "index nope.jsonl i --kind dense --encoder e": "nope.jsonl: no such file",
        "search nope words": "nope: no index here",
        "retriever nope": "nope: no index here",
        "annotate rubrics nope.jsonl --teacher t.toml --out o.jsonl": "nope.jsonl: no such file",
    }
    script = f"""
for line, message in {mistakes}.items():
    result = run(*line.split())
    if result.exit_code != 2 or message not in result.stderr or loaded("torch", "transformers", "numba"):
        print(line, result.exit_code, result.stderr, result.exception)
        break
"""
    assert output_of(tmp_path, script) == ""


def test_slow_work_alone_shows_plain_lines_on_stderr_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("quick") as progress:
        progress(1, 2)
        progress(2, 2)
    with progress_bar("slow") as progress:
        later = time.monotonic() + 5
        monkeypatch.setattr("time.monotonic", lambda: later)
        for done in (1, 2, 3, 4):
            progress(done, 4)
            later += 31
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "slow 1/4, 0:00:00 elapsed\nslow 3/4, 0:01:02 elapsed, 0:00:31 left\nslow 4/4, 0:01:33 elapsed, 0:00:00 left\n"
    )


def test_what_goes_beyond_its_total_has_no_time_left_and_a_line_at_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = ProgressBar("texts", total=10)
    later = time.monotonic() + 60
    monkeypatch.setattr("time.monotonic", lambda: later)
    bar.advance(12)
    for _ in range(1000):
        bar.advance()
    later += 60
    bar.advance(0)
    assert capsys.readouterr().err == "texts 12, 0:01:00 elapsed\ntexts 1012, 0:02:00 elapsed\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["import", "rollout", "destructor", "stuck"])
def test_two_signals_at_once_end_a_program_in_one_line(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    """As a launcher sends them: while a verb is imported, in an event loop whose tasks wait for each other, where
    Python drops what is raised, and where a task refuses to end."""
    script = f"""
import asyncio, os, sys
from sleuth.runs import interruption
from sleuth import cli
interruption.ENDING_SECONDS = 1.0
def twice():
    os.kill(os.getpid(), {number:d})
    os.kill(os.getpid(), {number:d})
class Dropped:
    def __del__(self):
        twice()
async def asked():
    twice()
async def waiting(other):
    await other
async def refusing():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
async def rollout():
    first = asyncio.ensure_future(asked())
    await asyncio.gather(*(asyncio.ensure_future(waiting(first)) for _ in range(20)))
async def stuck():
    tasks = [asyncio.ensure_future(one) for one in (refusing(), asyncio.sleep(60))]
    await asyncio.sleep(0.01)
    twice()
    await asyncio.gather(*tasks)
def app(prog_name):
    from typer import Typer
    from sleuth.cli.app import Verbs
    verbs = Typer(cls=Verbs, pretty_exceptions_enable=False)
    def go():
        if "{moment}" == "destructor":
            Dropped()
        else:
            asyncio.run(rollout() if "{moment}" == "rollout" else stuck())
    verbs.command("go")(go)
    verbs.command("other")(lambda: None)
    verbs(["go"])
if "{moment}" == "import":
    class Finder:
        def find_spec(self, name, *_):
            if name == "sleuth.cli.app":
                twice()
    sys.meta_path.insert(0, Finder())
else:
    import sleuth.cli.app
    sleuth.cli.app.app, app = app, None
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + number, "interrupted\n")
