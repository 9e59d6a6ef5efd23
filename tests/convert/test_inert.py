from __future__ import annotations

import argparse
import os
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


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    assert refusal(tmp_path / "a.pt") == f"{tmp_path / 'a.pt'}: is not a file"
