from __future__ import annotations

import argparse
import os
import time
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor  # allows torch's own DTensor to be unpickled, which must make no difference
from refusals import line_of
from torch import serialization

from sleuth.convert.inert import _nested, load_inert


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


class Attribute:
    """Looks up an attribute when it is unpickled."""

    def __init__(self, *path: object) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return getattr, self.path


def refusal(path: Path) -> str:
    return line_of(load_inert, path)


def test_a_pickle_with_a_command_is_refused_and_the_command_does_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    torch.save({"w": torch.ones(2), "x": Command(f"touch {proof}")}, path)
    reason = "contains posix.system, which does not belong in a state dict and could run code; not loaded"
    assert refusal(path) == f"{path}: {reason}"
    assert not proof.exists()


@pytest.mark.parametrize("path", [(dict, "fromkeys"), (torch.Tensor, "__class__")])
def test_getattr_is_allowed_only_for_the_nested_class_of_torch(tmp_path: Path, path: tuple) -> None:
    torch.save({"x": Attribute(*path)}, tmp_path / "evil.pt")
    assert "could run code" in refusal(tmp_path / "evil.pt")
    with pytest.raises(Exception, match=r"GLOBAL builtins\.getattr"):
        _nested(*path)


def test_an_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    assert "contains argparse.Namespace, which does not belong in a state dict" in refusal(tmp_path / "a.pt")


def test_safe_globals_of_the_process_are_ignored_and_restored(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace()}, tmp_path / "a.pt")
    before = set(serialization.get_safe_globals())
    with serialization.safe_globals([argparse.Namespace]):
        assert "argparse.Namespace" in refusal(tmp_path / "a.pt")
        assert argparse.Namespace in serialization.get_safe_globals()
    assert set(serialization.get_safe_globals()) == before


@pytest.mark.parametrize(
    ("contents", "reason"),
    [(b"", "is not a zip archive"), (b"PK\x03\x04 no archive", "cannot be read"), (b"text", "is not a zip archive")],
)
def test_an_unreadable_file_is_reported_in_one_line(tmp_path: Path, contents: bytes, reason: str) -> None:
    (tmp_path / "w.pt").write_bytes(contents)
    assert refusal(tmp_path / "w.pt").startswith(f"{tmp_path / 'w.pt'}: {reason}")


def test_a_list_is_refused_as_a_state_dict(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "w.pt")
    reason = "contains a list, expected a state dict (name -> tensor)"
    assert refusal(tmp_path / "w.pt") == f"{tmp_path / 'w.pt'}: {reason}"


def rezipped(path: Path, pickled: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> Path:
    """A copy of an archive of torch with another pickle or compression."""
    copy = path.with_name("copy.pt")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w", compression) as written:
        for entry in archive.infolist():
            is_pickle = entry.filename.endswith("/data.pkl") and pickled is not None
            written.writestr(entry.filename, pickled if is_pickle and pickled else archive.read(entry))
    return copy


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_a_pickle_that_inflates_is_not_inflated(saved: Path) -> None:
    bomb = rezipped(saved, b"\x80\x02" + b"0" * 2**28, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 10**6
    assert refusal(bomb) == f"{bomb}: holds compressed data, which torch.save does not write; not loaded"


def test_a_large_pickle_is_refused_with_the_variable_that_allows_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = rezipped(saved, b"\x80\x02" + b"0" * 2_000_000)
    monkeypatch.setenv("SLEUTH_MAX_PICKLE_MB", "1")
    assert refusal(large).endswith(
        "its data.pkl is larger than 1 MB; SLEUTH_MAX_PICKLE_MB in the environment raises this bound"
    )
    assert "w" in load_inert(saved)


@pytest.mark.parametrize("opened", [b"(", b"(((", b"(]("])
def test_deep_nesting_is_refused_at_once(saved: Path, opened: bytes) -> None:
    nested = rezipped(saved, b"\x80\x02" + opened * 2_000_000)
    began = time.monotonic()
    assert refusal(nested) == f"{nested}: its pickle nests more than 100 containers; not loaded"
    assert time.monotonic() - began < 2


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    assert refusal(tmp_path / "a.pt") == f"{tmp_path / 'a.pt'}: is not a file"
