from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from verb import refusal, sleuth

from sleuth.cli import index
from sleuth.cli.app import app, sections
from sleuth.retrieval import dense, encoder
from sleuth.retrieval.index_card import EncoderCard, IndexCard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "world"
    assert sleuth("world", folder, "--people", 200).exit_code == 0
    assert sleuth("index", folder / "corpus.jsonl", folder / "index").exit_code == 0
    return folder


def test_json_is_one_object_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    for arguments, key in [
        (("world", tmp_path / "w", "--people", 200), "sha256"),
        (("index", folder / "corpus.jsonl", tmp_path / "index"), "corpus_sha256"),
        (("search", folder / "index", "Mills"), "passages"),
        (("search", folder / "index", "--questions", folder / "qa_test.jsonl"), "recall"),
    ]:
        result = sleuth(*arguments, "--json")
        assert key in json.loads(result.stdout)
        assert result.stdout.count("\n") == 1


def test_vectors_are_quantised_by_default_unless_there_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[str]()

    def build(corpus: Path, folder: Path, encoder: EncoderCard, storage: str, progress: object) -> IndexCard:
        built.append(storage)
        return IndexCard(kind="dense", count=3, corpus_sha256="", layout=1, library="", encoder=encoder)

    monkeypatch.setattr(dense, "build_dense", build)
    monkeypatch.setattr(encoder, "encoder_card", lambda model, **settings: EncoderCard(model=model, width=8))
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "a"}\n' * 3)
    for few in (4, 3):
        monkeypatch.setattr(index, "FEW_PASSAGES", few)
        assert sleuth("index", tmp_path / "c.jsonl", tmp_path / "i", "--kind", "dense", "--encoder", "e").exit_code == 0
    assert built == ["flat", "ivf-sq8"]


def test_printed_commands_can_be_pasted_where_names_have_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my world"
    *written, line = sleuth("world", folder, "--people", "200").stdout.splitlines()
    assert f"{folder / 'qa_test.jsonl'}: 100 rows" in written
    assert shlex.split(line) == ["Next:", "sleuth", "index", str(folder / "corpus.jsonl"), str(folder / "index")]


def test_search_shows_the_best_passages_first(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").open()]
    title, text = next(row["contents"] for row in rows if "is a town in" in row["contents"]).split("\n")
    result = sleuth("search", folder / "index", text, "-k", 2)
    assert result.stdout.startswith(f"[1] {title.strip(chr(34))}  (id ")
    assert f"\n    {text}\n[2] " in result.stdout
    assert "[3]" not in result.stdout
    assert sleuth("search", folder / "index", "qqqq").stdout == "nothing found\n"


def test_recall_is_measured_for_all_questions_and_for_each_kind(folder: Path) -> None:
    questions = ("search", folder / "index", "--questions", folder / "qa_test.jsonl")
    recall = json.loads(sleuth(*questions, "--json").stdout)["recall"]
    assert {name: measured["n"] for name, measured in recall.items()} == {"all": 100, "one_hop": 50, "two_hop": 50}
    assert recall["all"]["low"] <= recall["all"]["value"] <= recall["all"]["high"]
    lines = sleuth(*questions).stdout.split("\n")
    assert any(line.split()[:2] == ["all", f"{recall['all']['value']:.3f}"] for line in lines)


def all_commands(command: Any = None, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb and every verb of a group, as it is typed."""
    command = typer.main.get_command(app) if command is None else command
    yield names, command
    for verb, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, (*names, verb))


COMMANDS = [names for names, _ in all_commands()]


@pytest.mark.parametrize("names", COMMANDS, ids=lambda names: " ".join(names) or "sleuth")
def test_a_wrong_command_line_is_one_line_with_status_2_and_minus_h_is_help(names: tuple[str, ...]) -> None:
    shown = sleuth(*names, "-h").stdout
    assert shown.startswith(f"Usage: {' '.join(('sleuth', *names))} ")
    typed = re.findall(r"^  (--?[\w-]+) +(?:<int|<float|<[^>]*\||INTEGER|FLOAT|\[)", shown, re.MULTILINE)
    for options in (["--no-such-option"], *([option, "no such value"] for option in typed)):
        result = sleuth(*names, *options)
        assert (result.exit_code, result.stdout) == (2, ""), options
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert options[0] in result.stderr


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("nonsense", "sleuth: no such command 'nonsense'; see sleuth -h"),
        ("index", "sleuth index: missing argument 'CORPUS'; see sleuth index -h"),
        ("eval m", "what is to be asked? give --questions FILE or --suite FOLDER, one of the two"),
        ("win-rate m", "sleuth win-rate: missing argument 'RECIPE'; see sleuth win-rate -h"),
        ("eval-suite m f", "sleuth: no such command 'eval-suite'; use `sleuth eval MODEL --suite FOLDER`"),
        ("get towns --from c", "sleuth get: no such option: --from; use `sleuth index CORPUS DIR`"),
        (
            "eval m --ask-with prompt",
            "sleuth eval: no such option: --ask-with; use `sleuth eval` without it: a model is asked as it was trained",
        ),
        ("serve m --cache-memory 8GB", "sleuth serve: no such option: --cache-memory; use fewer `--slots`"),
        (
            "certify m --ratings r.json",
            "sleuth certify: no such option: --ratings; use `--judge FILE` where exact match is too strict",
        ),
        (
            "init mine",
            "sleuth init: missing option '--corpus'; use `--corpus FILE --questions FILE`, or run `sleuth demo`",
        ),
        (
            "index c i --kind 3",
            "sleuth index: --kind: '3' is not one of 'bm25', 'dense', 'hybrid'; see sleuth index -h",
        ),
        ("search -k", "Option '-k' requires an argument"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_named(typed: str, line: str) -> None:
    assert refusal(*typed.split()) == line


def test_every_verb_is_listed_in_its_section_with_a_whole_sentence() -> None:
    listed = sleuth("--help").stdout
    for section, verbs in sections().items():
        lines = listed[listed.index(f"\n{section}:\n") :].split("\n")[2:]
        assert [line.split()[0] for line in lines[: len(verbs)]] == list(verbs)
        assert all(line.endswith(".") and not line.endswith("...") for line in lines[: len(verbs)])
    assert max(map(len, listed.splitlines())) <= 80
