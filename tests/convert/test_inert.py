from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor  # allows torch's own DTensor to be unpickled, which must make no difference
from torch import serialization

from sleuth.convert.inert import STAND_INS, Inert, _nested, load_inert
from sleuth.types import SleuthError


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


class Attribute:
    """Asks for an attribute when it is unpickled."""

    def __init__(self, *path: object) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return getattr, self.path


def refusal(path: Path) -> str:
    with pytest.raises(SleuthError) as caught:
        load_inert(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pickle_that_runs_a_command_is_refused_and_the_command_does_not_run(tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    torch.save({"w": torch.ones(2), "x": Command(f"touch {proof}")}, path)
    assert refusal(path) == f"{path}: holds posix.system, which is no part of a state dict and could run code: " + (
        "it was not loaded"
    )
    assert not proof.exists()


@pytest.mark.parametrize("path", [(dict, "fromkeys"), (torch.Tensor, "__class__")])
def test_getattr_serves_nothing_but_the_one_class_that_torch_nests(tmp_path: Path, path: tuple) -> None:
    torch.save({"x": Attribute(*path)}, tmp_path / "evil.pt")
    assert "could run code" in refusal(tmp_path / "evil.pt")
    with pytest.raises(Exception, match=r"GLOBAL builtins\.getattr"):
        _nested(*path)


def test_a_class_that_is_not_on_the_list_is_named(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    assert "holds argparse.Namespace, which is no part of a state dict" in refusal(tmp_path / "a.pt")


def test_what_else_the_process_allows_is_not_allowed_here_and_is_allowed_again_after(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace()}, tmp_path / "a.pt")
    before = set(serialization.get_safe_globals())
    with serialization.safe_globals([argparse.Namespace]):
        assert "argparse.Namespace" in refusal(tmp_path / "a.pt")
        assert argparse.Namespace in serialization.get_safe_globals()
    assert set(serialization.get_safe_globals()) == before


def test_no_class_of_torch_is_on_the_list(tmp_path: Path) -> None:
    assert {made.__module__ for made in STAND_INS.values()} == {Inert.__module__}


def test_a_file_that_is_not_there_is_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_inert(tmp_path / "gone.pt")


@pytest.mark.parametrize(
    ("contents", "told"),
    [(b"", "is no zip archive"), (b"PK\x03\x04 no archive", "cannot be read"), (b"text", "is no zip archive")],
)
def test_a_file_that_is_no_state_dict_is_one_line(tmp_path: Path, contents: bytes, told: str) -> None:
    (tmp_path / "w.pt").write_bytes(contents)
    assert refusal(tmp_path / "w.pt").startswith(f"{tmp_path / 'w.pt'}: {told}")


def test_a_file_cut_short_is_one_line(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(4096)}, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[: len(whole) // 2])
    assert "cut short, damaged" in refusal(tmp_path / "w.pt")


def test_a_list_is_no_state_dict(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "w.pt")
    assert (
        refusal(tmp_path / "w.pt") == f"{tmp_path / 'w.pt'}: holds a list, and a state dict (name -> tensor) is needed"
    )
