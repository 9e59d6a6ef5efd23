"""A mistake is one line, in the words that were typed, with exit status 2; no option is silently ignored."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from verb import sleuth, write_rows

from sleuth.cli.app import as_typed
from sleuth.terminal.inputs import prepare_out_file
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[2]
MODEL, DEMO = ROOT / "models" / "tiny-base", ROOT / "recipes" / "demo.toml"
EVAL = f"eval {MODEL} --questions q.jsonl"
ELSEWHERE = "http://127.0.0.1:1"
ENCODER = "--kind dense --encoder e"
MISTAKES = {
    "a model and what it is asked": {
        f"{EVAL} --index nope": "--index nope: no index here; make one with",
        f"{EVAL} --dialect zz": "--dialect zz: there is no such dialect; there are sleuth",
        f"{EVAL} --scorer zz": "--scorer zz: unknown; the scorers are strict",
        f"{EVAL} --prompt zz": "--prompt zz: no such file, and no prompt of that name",
        f"{EVAL} --judge nope.toml": "--judge nope.toml: no such file",
        f"{EVAL} --retriever {ELSEWHERE}": f"--retriever {ELSEWHERE} does not answer",
        f"{EVAL} --engine {ELSEWHERE}": f"--engine {ELSEWHERE}: does not answer",
        f"{EVAL} --context 99999": "--context 99999: the model holds",
        f"{EVAL} --served-as n": "--served-as n is for a server; give its URL too: --engine URL",
        f"{EVAL} --engine http://h:1 --dtype float32": "--dtype float32 is for a model in this process; the server at",
        f"{EVAL} --rows r.parquet": "--rows r.parquet: should be a .jsonl file",
        f"{EVAL} --engine h:1": "--engine h:1: should be http://HOST:PORT",
        f"{EVAL} --retriever http://h:1 --index i": "--index and --retriever are both given: passages come from one",
        f"{EVAL} --closed-book --index i": "--index has no effect with --closed-book, which allows no search; remove",
        f"eval {MODEL}": "give --questions FILE or --suite FOLDER, one of the two",
        f"eval {MODEL} --suite sets --limit 3": "--limit is for a file of questions; leave it out with --suite",
        f"eval {MODEL} --questions q.jsonl --per-set 3": "--per-set is for --suite",
    },
    "servers": {
        f"serve {MODEL} --port 0 --index x --url http://h:9": "--index and --url are both given: passages come",
        f"serve {MODEL} --host no-such-host.invalid": "cannot listen there",
        "retriever index --host 192.0.2.1": "cannot listen there",
        "watch nope --port 0": "nope: no such folder; give the folder of a run, for example runs/demo",
        "watch empty empty --port 0": "is given twice",
        **{
            f"{server} --host 0.0.0.0 --port 0": "export SLEUTH_API_KEY=... first, a key that their requests must "
            "carry, or say --insecure"
            for server in ("watch empty", f"serve {MODEL}", "retriever index")
        },
        **{
            f"serve no/such/model --port 0 {option}": "no such folder"
            for option in ("--name n", "--slots 3", "--waiting 3", "--max-seconds 3", "--context 64", "--dtype float32")
        },
    },
    "indexes": {
        "search index a --questions q.jsonl": "give a query or --questions",
        "search index --questions no_gold.jsonl": "gold_ids",
        "search index --questions .": "--questions .: no such file",
        "index bad.jsonl i": "bad.jsonl:2: no `contents`",
        "index corpus.jsonl folder": "exists and is not an index",
        "index corpus.jsonl i --kind dense": "--kind dense: name the encoder too: --encoder MODEL",
        f"index c.jsonl i {ENCODER} --query-prefix q --pooling cls --vectors flat": "c.jsonl: no such file",
        f"index c.jsonl i {ENCODER} --faiss f --vectors flat": "--vectors is for encoding a corpus, and --faiss opens",
        "index c.jsonl i --kind hybrid --encoder e --faiss f": "--faiss is for --kind dense; leave it out to encode",
        **{
            f"index c.jsonl i {option}": f"{option.split()[0]} is for vectors, and a bm25 index has none; add --kind"
            for option in (
                *("--encoder e", "--query-prefix q", "--passage-prefix p", "--pooling cls", "--vectors flat"),
                "--faiss f",
            )
        },
    },
    "recipes and data": {
        "check recipe r.toml": 'r.toml: stage.0.data.questions = "nope.jsonl": no such file',
        "check recipe r.toml --set asked.env.index=no": '--set asked.env.index=no: stage.0.env.index = "no"',
        "init new --corpus nope --questions q.jsonl": "--corpus nope: no such",
        "world .": "has no world.json",
        "world w --people 3": "from 200 to 200,000 people",
    },
}
RECIPE = f"""
name = "r"
model = "{MODEL}"
[[stage]]
kind = "evaluate"
name = "asked"
context = 64
[stage.data]
questions = "nope.jsonl"
[stage.env]
kind = "search"
dialect = "sleuth"
prompt = "plain"
index = "nope"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLEUTH_API_KEY", raising=False)
    corpus = [{"id": str(at), "contents": f'"T"\nsoup number {at}'} for at in range(3)]
    asked = [
        {"id": f"q{at}", "question": f"Who is {at}?", "golden_answers": ["x"], "gold_ids": ["1"]} for at in range(4)
    ]
    bare = {"id": "1", "question": "who?", "golden_answers": ["I"]}
    rows = {"corpus": corpus, "q": asked, "no_gold": [bare], "bare": [{"contents": "a"}]}
    rows["bad"] = [corpus[0], {"id": "2"}]
    for name, contents in rows.items():
        write_rows(Path(f"{name}.jsonl"), contents)
    Path("ids.txt").write_text("\n \n")
    Path("r.toml").write_text(RECIPE)
    Path("empty").mkdir()
    Path("folder").mkdir()
    Path("folder/notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("verbs", MISTAKES)
def test_a_mistake_is_one_line_that_names_what_was_typed_and_leaves_nothing(verbs: str, here: Path) -> None:
    assert sleuth("index", "corpus.jsonl", "index").exit_code == 0
    before = sorted(here.iterdir())
    for line, message in MISTAKES[verbs].items():
        done = sleuth(*line.split())
        assert sorted(here.iterdir()) == before, line
        errors = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
        assert (done.exit_code, done.stdout) == (2, ""), line
        assert len(errors) == done.stderr.count("\n") - done.stderr.count("note: "), line
        assert any(message in one for one in errors), (line, done.stderr)
        starts = message.startswith(("--", "nope: ", "r.toml: "))
        assert not starts or any(one.startswith(f"error: {message}") for one in errors), (line, done.stderr)


def test_a_problem_that_begins_with_no_value_of_an_option_stays_as_it_is() -> None:
    assert as_typed("nope: no index here", {"--out": "nope.json"}) == "nope: no index here"
    for line in (("search", "--json", "nope", "who"), ("search", "nope", "nope")):
        assert sleuth(*line).stderr.startswith("error: nope: no index here")


@pytest.mark.parametrize("line", ["serve no/such/model", "watch empty"])
def test_a_taken_port_is_reported_before_anything_is_loaded(line: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = sleuth(*line.split(), "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "cannot listen there (Address already in use); --port 0 takes a free one\n" in result.stderr


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("folder", "a folder; name a file"),
        ("folder/notes.txt/base.json", "is not a folder"),
        ("folder/notes.txt/deeper/base.json", "is not a folder"),
        (f"{'x' * 300}.json", r"cannot be written \(File name too long\)"),
        ("/proc/nowhere/a.json", "cannot be written"),
    ],
)
def test_a_place_where_no_file_can_be_written_is_refused_before_the_work(tmp_path: Path, out: str, reason: str) -> None:
    prepare_out_file(tmp_path / "eval" / "base.json")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SleuthError, match=f"--out .*: .*{reason}"):
        prepare_out_file(Path(out))
    assert sorted(tmp_path.rglob("*")) == before
