"""A hint speaks in the words that were typed: the option, the key of a recipe, or --set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.cli.app import as_typed

MODEL = Path(__file__).parents[2] / "models" / "tiny-base"
ASKED = ("--questions", "q.jsonl")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": str(at), "question": f"Who is {at}?", "golden_answers": ["x"]} for at in range(4)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("teacher.toml").write_text('[teacher]\nurls = ["http://127.0.0.1:1"]\nmodel = "m"\n')


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (("eval", MODEL, *ASKED, "--index", "nope"), "--index nope: no index here; make one with"),
        (("eval", MODEL, *ASKED, "--index=nope"), "--index nope: no index here; make one with"),
        (("eval", MODEL, *ASKED, "--index", "./nope"), "--index ./nope: no index here; make one with"),
        (("eval", MODEL, "--questions", "nope.jsonl"), "--questions nope.jsonl: no such file"),
        (("eval", MODEL, *ASKED, "--dialect", "zz"), "--dialect zz: there is no such dialect; there are sleuth"),
        (("eval", MODEL, *ASKED, "--scorer", "zz"), "--scorer zz: unknown; the scorers are strict"),
        (("eval", MODEL, *ASKED, "--prompt", "zz"), "--prompt zz: no such file, and no prompt of that name"),
        (("eval", MODEL, *ASKED, "--judge", "nope.toml"), "--judge nope.toml: no such file"),
        (
            ("eval", MODEL, *ASKED, "--retriever", "http://127.0.0.1:1"),
            "--retriever http://127.0.0.1:1 does not answer",
        ),
        (("eval", MODEL, *ASKED, "--engine", "http://127.0.0.1:1"), "--engine http://127.0.0.1:1: does not answer"),
        (("eval", MODEL, *ASKED, "--context", 99999), "--context 99999: the model holds"),
        (("eval", "nope", *ASKED), "nope: no such folder here"),
        (("serve", MODEL, "--index", "nope"), "--index nope: no index here"),
        (("serve", MODEL, "--dialect", "zz"), "--dialect zz: there is no such dialect"),
        (("probe", MODEL, *ASKED, "--index", "nope"), "--index nope: no index here"),
        (("search", "nope", "who"), "nope: no index here"),
        (("init", "new", "--corpus", "nope", "--questions", "q.jsonl"), "--corpus nope: no such"),
        (
            ("annotate", "thoughts", "q.jsonl", "--teacher", "nope", "--out", "x.parquet", "--model", MODEL),
            "--teacher nope",
        ),
        (("check", "recipe", "r.toml"), 'r.toml: stage.0.data.questions = "nope.jsonl": no such file'),
        (("check", "recipe", "r.toml"), 'r.toml: stage.0.env.index = "nope": no index here'),
        (
            ("check", "recipe", "r.toml", "--set", "asked.env.index=no"),
            '--set asked.env.index=no: stage.0.env.index = "no"',
        ),
        (("check", "recipe", "r.toml", "--set", "model=no"), '--set model=no: model = "no": no such folder here'),
    ],
)
def test_a_hint_names_what_was_typed(line: tuple[object, ...], hint: str) -> None:
    Path("r.toml").write_text(
        f'name = "r"\nmodel = "{MODEL}"\n[[stage]]\nkind = "evaluate"\nname = "asked"\n'
        '[stage.data]\nquestions = "nope.jsonl"\n[stage.env]\nkind = "search"\nindex = "nope"\n'
    )
    done = sleuth(*line)
    assert done.exit_code == 2, done.stderr
    errors = [one.removeprefix("error: ") for one in done.stderr.splitlines() if one.startswith("error: ")]
    assert any(one.startswith(hint) for one in errors), done.stderr


def test_a_problem_that_begins_with_no_value_of_an_option_stays_as_it_is() -> None:
    assert as_typed("nope: no index here", {"--out": "nope.json"}) == "nope: no index here"
    for line in (("search", "--json", "nope", "who"), ("search", "nope", "nope")):
        assert sleuth(*line).stderr.startswith("error: nope: no index here")
