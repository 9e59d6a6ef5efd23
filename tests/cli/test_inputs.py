from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.cli.out_file import require_file
from sleuth.types import SleuthError


def test_the_folder_of_a_result_is_made_before_the_work(tmp_path: Path) -> None:
    require_file(tmp_path / "eval" / "base.json")
    assert list((tmp_path / "eval").iterdir()) == []
    (tmp_path / "eval" / "base.json").write_text("{}")
    require_file(tmp_path / "eval" / "base.json")
    assert (tmp_path / "eval" / "base.json").read_text() == "{}"


def test_a_place_where_no_file_can_be_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(SleuthError, match="a folder; name a file"):
        require_file(tmp_path)
    for out in (tmp_path / "notes" / "base.json", tmp_path / "notes" / "deeper" / "base.json"):
        with pytest.raises(SleuthError, match="is no folder"):
            require_file(out)
    assert (tmp_path / "notes").read_text() == "mine"
