"""A stage that lets a teacher write thoughts: made where they are missing, shared, continued by the same command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.data.documents import read_documents
from sleuth.think.world_texts import ChainedTexts

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
COUNT = 6
RECIPE = """
name = "taught"
model = "{model}"
[[stage]]
kind = "supervised"
name = "text"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "text", texts = "{texts}", prefix_tokens = 8, suffix_tokens = 8 }}
[[stage]]
kind = "annotate"
name = "annotated"
texts = "{texts}"
out = "{out}"
tokens = 48
gated = false
teacher = {{ urls = ["{url}"], model = "{name}" }}
[[stage]]
kind = "supervised"
name = "shown"
steps = 1
rows_per_step = 2
learning_rate = 1e-3
data = {{ kind = "thoughts", texts = "{out}" }}
"""


def helpful(body: dict[str, Any]) -> tuple[int, object]:
    _, *rest = re.split(r"⟦\d+⟧", part(body, "text"))
    return says(json.dumps({"thoughts": [{"place": 1, "thought": "".join(rest)}]}))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    drawn = ChainedTexts(200, "train", (3,))
    rows = [{"id": f"t{at}", "text": drawn.text(at).text, "source": "chains"} for at in range(COUNT)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def trained(texts: Path, server: ChatServer, run: str = "run", **changes: str) -> Result:
    recipe, out = texts.with_name("taught.toml"), texts.with_name("thoughts.parquet")
    recipe.write_text(RECIPE.format(model=BASE, texts=texts, out=out, url=server.url, name=MODEL))
    overrides = [part for key, value in changes.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    return CliRunner().invoke(app, ["train", str(recipe), "--run", str(texts.with_name(run)), "--quiet", *overrides])


def checkpoints(texts: Path, run: str = "run") -> list[str]:
    return sorted(path.name for path in (texts.with_name(run) / "checkpoints").iterdir())


def test_a_run_stops_where_the_teacher_is_not_there_and_goes_on_when_it_is(texts: Path) -> None:
    server = ChatServer(answer=helpful, models=(200, {"data": [{"id": "another"}]}))
    with server.running():
        stopped = trained(texts, server)
        assert (stopped.exit_code, stopped.stdout) == (1, "")
        [line] = [line for line in stopped.stderr.splitlines() if line.startswith("error")]
        assert f"stage annotated: the teacher that writes {texts.with_name('thoughts.parquet')} is not there" in line
        assert checkpoints(texts) == ["step-000001"]
        server.models = ChatServer().models
        done = trained(texts, server)
        assert done.exit_code == 0, done.stderr
        assert checkpoints(texts) == ["step-000001", "step-000002"]
        assert len(server.asked) == COUNT
        documents = list(read_documents(texts.with_name("thoughts.parquet")))
        assert all(document.thoughts for document in documents)
        again = trained(texts, server, "another")  # the file is there: nothing is asked, whoever serves the teacher
        assert (again.exit_code, len(server.asked)) == (0, COUNT)


def test_texts_without_thoughts_beyond_the_limit_stop_the_run_and_are_asked_for_again(texts: Path) -> None:
    def sometimes(body: dict[str, Any]) -> tuple[int, object]:
        return helpful(body) if len(server.asked) <= 4 else (400, {"error": "out of credit"})

    with ChatServer(answer=sometimes).running() as server:
        stopped = trained(texts, server)
        assert stopped.exit_code == 1
        [line] = [line for line in stopped.stderr.splitlines() if line.startswith("error")]
        assert re.search(r"[1-5] of 6 texts got no thoughts \(.*\), and at most 5% may; thoughts\.answers\.jsonl", line)
        assert not texts.with_name("thoughts.parquet").exists()
        kept = len(texts.with_name("thoughts.answers.jsonl").read_text().splitlines())
        assert 1 <= kept <= 5
        asked, server.answer = len(server.asked), helpful
        assert trained(texts, server).exit_code == 0
        assert len(server.asked) == asked + COUNT - kept


def test_a_file_that_a_later_stage_makes_is_still_missed(texts: Path) -> None:
    recipe = texts.with_name("taught.toml")
    text = RECIPE.format(model=BASE, texts=texts, out=texts.with_name("made.parquet"), url="http://h", name=MODEL)
    head, first, second, third = text.split("[[stage]]")
    recipe.write_text("[[stage]]".join([head, first, third, second]))
    done = CliRunner().invoke(app, ["train", str(recipe), "--run", str(texts.with_name("run"))])
    assert done.exit_code == 2
    assert re.search(r"stage\.1\.data\.texts = .*made\.parquet.*: no such file", done.stderr)
