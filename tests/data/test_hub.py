"""Files on the hub, with a folder in the hub's place: nothing here asks the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from folder_hub import FolderHub

from sleuth.answers.suites import load_suite
from sleuth.data.hub import HubLocation, files_below, local_file
from sleuth.data.questions import load_questions
from sleuth.types import SleuthError

ROW = {"id": "test_0", "question": "where was Ada Voss born?", "golden_answers": ["Tarn"]}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    hub = FolderHub(tmp_path)
    for name in ("nq/test.jsonl", "hotpotqa/dev.jsonl", "corpus/wiki.jsonl", "README.md"):
        file = tmp_path / "owner" / "sets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(ROW) + "\n")
    hub.put(monkeypatch)
    return hub


def test_a_path_on_the_hub_is_read_whether_or_not_its_slashes_were_folded() -> None:
    whole = HubLocation(repository="owner/sets", revision="v2", path="nq/test.jsonl")
    assert HubLocation.read(Path("hf://owner/sets@v2/nq/test.jsonl")) == whole
    assert HubLocation.read(Path(str(Path("hf://owner/sets@v2/nq/test.jsonl")))) == whole
    assert str(whole) == "hf://owner/sets@v2/nq/test.jsonl"
    assert HubLocation.read(Path("sets/nq/test.jsonl")) is None


def test_questions_are_read_from_the_hub_at_the_commit_whose_size_was_said(
    hub: FolderHub, capsys: pytest.CaptureFixture[str]
) -> None:
    [task] = load_questions(Path("hf://owner/sets/nq/test.jsonl"))
    assert task.question == ROW["question"]
    assert hub.asked == [("nq/test.jsonl", None, True), ("nq/test.jsonl", "c0ffee", False)]
    assert hub.cards == ["owner/sets"]
    assert capsys.readouterr().err == "hf://owner/sets/nq/test.jsonl: 2.5 MB to download\n"


def test_a_suite_on_the_hub_fetches_the_splits_it_asks_and_no_other_file(hub: FolderHub) -> None:
    suite = load_suite(Path("hf://owner/sets"))
    assert [(one.name, one.split) for one in suite.sets] == [("nq", "test"), ("hotpotqa", "dev")]
    assert {file for file, _, _ in hub.asked} == {"nq/test.jsonl", "hotpotqa/dev.jsonl"}
    assert files_below(HubLocation(repository="owner/sets", revision=None, path="nq")) == ["test.jsonl"]


@pytest.mark.parametrize("path", ["hf://owner", "hf://owner/sets"])
def test_a_path_that_names_no_file_is_told_what_would_be_right(path: str, hub: FolderHub) -> None:
    with pytest.raises(SleuthError, match="should be hf://OWNER/NAME/FILE"):
        local_file(Path(path))


def test_a_split_is_the_one_file_of_rows_that_is_named_after_it(hub: FolderHub) -> None:
    for name in ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00002.jsonl", "data/test-00001-of-00002.jsonl"):
        file = hub.folder / "owner" / "rows" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(ROW) + "\n")
    assert local_file(Path("hf://owner/rows/train")).name == "train-00000-of-00001.jsonl"
    assert len(load_questions(Path("hf://owner/rows@v2/train"))) == 1
    with pytest.raises(SleuthError) as several:
        local_file(Path("hf://owner/rows/test"))
    first, second = (f"hf://owner/rows/data/test-0000{n}-of-00002.jsonl" for n in (0, 1))
    assert str(several.value) == (
        f"hf://owner/rows/test: names {first}, {second}; should be one file, hf://OWNER/NAME/FILE"
    )
    with pytest.raises(SleuthError, match=r"^hf://owner/rows/dev: has no file of rows of this name; "):
        local_file(Path("hf://owner/rows/dev"))


class ConnectionLostError(Exception):
    """An error of the web client below the hub's: of no kind that the hub names."""


def test_what_the_hub_refuses_or_that_it_cannot_be_reached_is_one_line(
    hub: FolderHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise ConnectionLostError("Name or service not known")

    cannot = "cannot be downloaded from the hub: "
    with pytest.raises(SleuthError, match=f"^hf://owner/sets/none.jsonl: {cannot}no none.jsonl in owner/sets$"):
        local_file(Path("hf://owner/sets/none.jsonl"))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_files=lost))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lost)
    with pytest.raises(SleuthError, match=f"^hf://owner/sets.*: {cannot}Name or service"):
        load_suite(Path("hf://owner/sets"))
    with pytest.raises(SleuthError, match=f"^hf://owner/sets.*: {cannot}Name or service"):
        load_questions(Path("hf://owner/sets/nq/test.jsonl"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SleuthError, match=r'pip install "sleuth\[hub\]"'):
        local_file(Path("hf://owner/sets/nq/test.jsonl"))
