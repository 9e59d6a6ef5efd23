from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.checksums import SUMS, damage, write_checksums
from sleuth.runs.checkpoints import STATE, remove_state, save_checkpoint, saved_with_state, step_name


@pytest.fixture
def checkpoint(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, protocol: ProtocolCard
) -> Path:
    folder = tmp_path / "checkpoints" / step_name(3)
    save_checkpoint(folder, model, tokenizer, card="# tiny\n", protocol=protocol, state={"step": 3})
    return folder


def flip(file: Path) -> None:
    """Changes one byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def files_of(checkpoint: Path) -> list[str]:
    return sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())


def test_the_list_is_that_of_sha256sum_and_names_all_files_but_the_card(checkpoint: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=checkpoint, check=True, capture_output=True)
    listed = [line.split("  ")[1] for line in (checkpoint / SUMS).read_text().splitlines()]
    assert listed == [name for name in files_of(checkpoint) if name not in (SUMS, "README.md")]
    assert "model.safetensors" in listed
    assert STATE.as_posix() in listed


def test_one_changed_or_missing_byte_of_any_file_is_found_and_named(checkpoint: Path, tmp_path: Path) -> None:
    for number, name in enumerate(files_of(checkpoint)):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(checkpoint, copy)
        assert damage(copy) is None
        flip(copy / name)
        if name == "README.md":
            assert damage(copy) is None
        elif name == SUMS:
            assert damage(copy) is not None
        else:
            assert damage(copy) == f"{name} is not what was written"
        (copy / name).unlink()
        assert name in (damage(copy) or name)  # without a list nothing can be compared


def test_a_milestone_is_intact_without_its_state(checkpoint: Path) -> None:
    assert saved_with_state(checkpoint)
    remove_state(checkpoint)
    assert damage(checkpoint) is None
    assert not saved_with_state(checkpoint)


def test_a_file_is_read_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(bytes(1000))
    write_checksums(tmp_path)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("read again"))
    assert damage(tmp_path) is None
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert damage(moved) is None
