"""What verbs check before any work."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.terminal.inputs import prepare_out_file
from sleuth.types import SleuthError

DEMO = Path(__file__).parents[2] / "recipes" / "demo.toml"


@pytest.mark.parametrize(
    ("verb", "kind"), [("reasoning", "reason"), ("win-rate", "win_rate"), ("probe-thoughts", "probe")]
)
def test_a_recipe_without_the_stage_of_a_verb_is_one_line(verb: str, kind: str) -> None:
    done = sleuth(verb, "a-model", DEMO)
    assert done.exit_code == 2
    assert done.stderr == f'error: {DEMO}: has no stage of kind = "{kind}"; add one\n'


def test_the_folder_of_a_result_is_made_before_the_work(tmp_path: Path) -> None:
    prepare_out_file(tmp_path / "eval" / "base.json")
    assert list((tmp_path / "eval").iterdir()) == []
    (tmp_path / "eval" / "base.json").write_text("{}")
    prepare_out_file(tmp_path / "eval" / "base.json")
    assert (tmp_path / "eval" / "base.json").read_text() == "{}"


def test_a_place_where_no_file_can_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(SleuthError, match="a folder; name a file"):
        prepare_out_file(tmp_path)
    for out in (tmp_path / "notes" / "base.json", tmp_path / "notes" / "deeper" / "base.json"):
        with pytest.raises(SleuthError, match="is not a folder"):
            prepare_out_file(out)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match=r"--out .*: cannot be written \(File name too long\)"):
        prepare_out_file(tmp_path / f"{'x' * 300}.json")
    with pytest.raises(SleuthError, match=r"--out /proc/nowhere/a[.]json: cannot be written"):
        prepare_out_file(Path("/proc/nowhere/a.json"))
    assert list(tmp_path.iterdir()) == []


def test_printed_commands_can_be_pasted_where_names_have_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my world"
    line = sleuth("world", folder, "--people", "200").stdout.splitlines()[-1]
    assert shlex.split(line) == ["Next:", "sleuth", "index", str(folder / "corpus.jsonl"), str(folder / "index")]
