"""What strangers wrote is shown by a terminal, never obeyed; a pipe gets it as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hostile import HOSTILE, PASSAGES
from terminal import Terminal

from sleuth.host.escapes import escape

SLEUTH = (sys.executable, "-m", "sleuth")
OBEYED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\r*\n)")
RICH = re.compile(r"\x1b\[(\d+(;\d+)*m|2K|1A|\?25[lh])|\r(?=\x1b\[2K)")
"""What our own console sends: colours, and the lines of a bar."""
VARIABLES = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm-256color"}


def shown(folder: Path, *arguments: object, status: int = 0) -> str:
    """What a terminal was sent by a verb, after nothing in it was found that a terminal obeys."""
    with Terminal(*SLEUTH, *arguments, folder=folder, variables=VARIABLES) as terminal:
        screen = terminal.end()
    assert screen.status == status, screen.raw
    assert OBEYED.findall(RICH.sub("", screen.raw)) == []
    for text in HOSTILE.values():
        assert text not in screen.raw or text == escape(text), screen.raw
    return screen.raw.replace("\r\n", "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its index and questions, all hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    passages = [{"id": f"{name}{text}", "title": text, "text": f"{text}\n\tnext"} for name, text in PASSAGES.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in passages))
    asked = [
        {"id": name + text, "question": text + "?", "golden_answers": [text], "type": "k" + text, "data_source": text}
        for name, text in PASSAGES.items()
    ]
    gold = [one | {"gold_ids": [passage["id"]]} for one, passage in zip(asked, passages, strict=True)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in gold))
    (folder / "malformed.jsonl").write_text("".join(json.dumps({"id": t, t: 1}) + "\n" for t in PASSAGES.values()))
    done = subprocess.run([*SLEUTH, "index", "corpus.jsonl", "index"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_passages_are_shown_with_visible_escapes(folder: Path) -> None:
    seen = shown(folder, "search", "index", "evil", "-k", 20)
    for text in PASSAGES.values():
        assert seen.count(escape(text)) >= 2  # in the id and the text
        assert escape(" ".join(text.split())) in seen  # in the title
    assert "\n\tnext" in seen


def test_a_pipe_and_json_get_the_text_as_it_is(folder: Path) -> None:
    done = subprocess.run([*SLEUTH, "search", "index", "evil", "-k", "20"], cwd=folder, capture_output=True, check=True)
    for text in PASSAGES.values():
        assert f"    {click.unstyle(text)}\n\tnext\n".encode() in done.stdout  # colours have never gone to a pipe
    listed = json.loads(shown(folder, "search", "index", "evil", "-k", 20, "--json"))
    assert {one["text"] for one in listed["passages"]} == {f"{text}\n\tnext" for text in PASSAGES.values()}


def test_errors_and_findings_quote_data_with_visible_escapes(folder: Path) -> None:
    name = PASSAGES["h0"] + PASSAGES["h8"] + PASSAGES["h18"]
    assert escape(name) in shown(folder, "search", name, "query", status=2)
    assert escape(PASSAGES["h0"]) in shown(folder, "check", "data", "malformed.jsonl", status=2)
    shown(folder, "check", "data", "questions.jsonl", "--against", "questions.jsonl")
    assert "error: " in shown(folder, "search", "index", "evil", f"--{PASSAGES['h0']}", status=2)
    (folder / "bad.toml").write_text(f"name = {json.dumps(PASSAGES['h0'])}\n{json.dumps(PASSAGES['h2'])} = 3\n")
    assert escape(PASSAGES["h2"]) in shown(folder, "check", "recipe", "bad.toml", status=2)


BAR = """
import sys, time
from sleuth.host.escapes import escape_terminals
escape_terminals()
from sleuth.terminal.tables import Column, print_columns
from sleuth.runs.progress import Console, ProgressBar
text = sys.argv[1].encode("ascii").decode("unicode_escape")
with ProgressBar(text, 2) as bar:
    bar.advance(note=text)
    bar.say("said " + text)
    print("printed " + text)
    print("to stderr " + text, file=sys.stderr)
    bar.advance(note=text)
print_columns([text], [Column(heading=text, cells=(text,), footer=text, is_text=True)], title=text)
Console().print("printed by the console " + text, style="bold", soft_wrap=True)
"""


def test_a_bar_and_what_is_printed_above_it_obey_nothing(tmp_path: Path) -> None:
    text = "".join(PASSAGES.values())
    arguments = (sys.executable, "-c", BAR, text.encode("unicode_escape").decode("ascii").replace("\x00", ""))
    with Terminal(*arguments, folder=tmp_path, variables=VARIABLES) as terminal:
        screen = terminal.end()
    assert screen.status == 0, screen.raw
    assert OBEYED.findall(RICH.sub("", screen.raw)) == []
    assert "\x1b[1m" in screen.raw  # rich's own
    assert "[bold]loud[/bold]" in screen.raw
    assert ":bomb:" in screen.raw
    folded = re.sub(r"\s|\x1b\[[\d;]*m", "", screen.raw)
    for opening in ("said ", "printed ", "to stderr ", "printed by the console "):
        assert re.sub(r"\s", "", opening + escape(text)) in folded


def test_a_long_line_of_a_run_is_folded_between_words(tmp_path: Path) -> None:
    said = "step 8, held-out articles: exact match 0.289 (0.268 to 0.310) of 1,771 questions, F1 0.370 (0.348 to 0.393)"
    print_it = f"from sleuth.runs.progress import print_line\nprint_line({said!r})"
    with Terminal(sys.executable, "-c", print_it, folder=tmp_path, variables=VARIABLES) as terminal:
        lines = terminal.end().raw.splitlines()
    assert (" ".join(lines), len(lines)) == (said, 2)
