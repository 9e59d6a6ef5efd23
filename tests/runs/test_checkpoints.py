from __future__ import annotations

import random
import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from sleuth.episodes.protocol import ProtocolCard
from sleuth.runs.checkpoints import (
    STATE,
    checkpoints_in,
    latest_checkpoint,
    load_state,
    prune_checkpoints,
    resumable,
    save_checkpoint,
    step_name,
    step_of,
)
from sleuth.types import SleuthError


class CrashError(Exception):
    """The process dies here."""


class DyingTokenizer:
    """Stands where the tokenizer would; saving it is where the process dies, the weights already written."""

    def save_pretrained(self, folder: Path) -> None:
        assert (folder / "model.safetensors").exists()
        raise CrashError


def test_a_checkpoint_is_a_folder_that_hugging_face_loads(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, protocol: ProtocolCard
) -> None:
    folder = tmp_path / "checkpoints" / step_name(3)
    save_checkpoint(folder, model, tokenizer, card="# tiny\n", protocol=protocol, state={"step": 3})
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
    assert ProtocolCard.read(folder) == protocol
    assert (folder / "README.md").read_text() == "# tiny\n"


def test_state_comes_back_exactly(tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    draws = random.Random(3).getstate()
    state = {"step": 3, "moments": {0: torch.randn(4)}, "draws": draws, "asked": [1, 2], "nested": OrderedDict(a=None)}
    save_checkpoint(tmp_path / "step-000003", model, tokenizer, card="", state=state)
    loaded = load_state(tmp_path / "step-000003")
    assert torch.equal(loaded.pop("moments")[0], state.pop("moments")[0])
    assert loaded == state


@pytest.mark.parametrize("value", [{1, 2}, np.float64(1.0), Path("x"), object()])
def test_a_state_that_could_not_be_read_again_is_refused_before_anything_is_written(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, value: object
) -> None:
    with pytest.raises(TypeError, match=r"state\[.policy.\]\[0\] is a"):
        save_checkpoint(tmp_path / "step-000001", model, tokenizer, card="", state={"policy": [value]})
    assert list(tmp_path.iterdir()) == []


def test_a_crash_in_the_middle_of_a_save_leaves_the_last_good_one_as_the_latest(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    save_checkpoint(tmp_path / step_name(1), model, tokenizer, card="first", state={"step": 1})
    with pytest.raises(CrashError):
        save_checkpoint(tmp_path / step_name(2), model, DyingTokenizer(), card="second")  # type: ignore[arg-type]
    assert latest_checkpoint(tmp_path) == tmp_path / step_name(1)
    assert [place.name for place in tmp_path.iterdir()] == ["step-000001"]


def test_what_a_killed_process_left_half_written_is_never_taken_and_does_not_stand_in_the_way(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    save_checkpoint(tmp_path / step_name(1), model, tokenizer, card="first")
    half = tmp_path / "step-000002.partial"
    half.mkdir()
    (half / "config.json").write_text("{", encoding="utf-8")
    assert latest_checkpoint(tmp_path) == tmp_path / step_name(1)
    save_checkpoint(tmp_path / step_name(2), model, tokenizer, card="second")
    assert latest_checkpoint(tmp_path) == tmp_path / step_name(2)
    assert not half.exists()


def test_a_crash_while_a_checkpoint_is_replaced_leaves_the_old_one(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    save_checkpoint(tmp_path / step_name(1), model, tokenizer, card="first")
    with pytest.raises(CrashError):
        save_checkpoint(tmp_path / step_name(1), model, DyingTokenizer(), card="second")  # type: ignore[arg-type]
    assert (tmp_path / step_name(1) / "README.md").read_text() == "first"
    stale = tmp_path / "step-000001.replaced.partial/state"  # what an earlier process, killed at the last moment, left
    stale.mkdir(parents=True)
    save_checkpoint(tmp_path / step_name(1), model, tokenizer, card="second")
    assert (tmp_path / step_name(1) / "README.md").read_text() == "second"
    assert [place.name for place in tmp_path.iterdir()] == ["step-000001"]


def test_the_latest_is_the_highest_step_even_beyond_six_digits(tmp_path: Path) -> None:
    for name in ("step-999999", "step-1000000", "step-000007", "step-12", "best", "step-000009.partial"):
        (tmp_path / name).mkdir()
    assert [step_of(place) for place in checkpoints_in(tmp_path)] == [7, 999999, 1000000]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1000000"


def saved_steps(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / step_name(step) / STATE).parent.mkdir(parents=True)
        (folder / step_name(step) / STATE).touch()


def test_pruning_keeps_the_newest_and_removes_the_half_written(tmp_path: Path) -> None:
    saved_steps(tmp_path, 1, 2, 3)
    for name in ("step-000004.partial", "notes"):
        (tmp_path / name).mkdir()
    prune_checkpoints(tmp_path, tmp_path / "step-000003", keep=2)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["notes", "step-000002", "step-000003"]
    with pytest.raises(ValueError, match="keep = 0"):
        prune_checkpoints(tmp_path, tmp_path / "step-000003", keep=0)


def test_pruning_removes_what_grew_out_of_an_earlier_end_and_leaves_the_stages_before_alone(tmp_path: Path) -> None:
    saved_steps(tmp_path, 1, 2, 5, 6, 7, 10, 12)
    prune_checkpoints(tmp_path, tmp_path / step_name(7), keep=2, after=2)
    assert [step_of(place) for place in checkpoints_in(tmp_path)] == [1, 2, 6, 7]


def test_the_best_checkpoint_outlives_the_newer_ones_and_milestones_keep_their_weights_alone(tmp_path: Path) -> None:
    saved_steps(tmp_path, 10, 15, 20, 25, 30)
    best = tmp_path / step_name(15)
    prune_checkpoints(tmp_path, tmp_path / step_name(30), keep=1, milestone_every=10, best=best)
    found = {step_of(place): resumable(place) for place in checkpoints_in(tmp_path)}
    assert found == {10: False, 15: True, 20: False, 30: True}
    prune_checkpoints(
        tmp_path, tmp_path / step_name(30), keep=1, milestone_every=10, best=best
    )  # again: nothing more goes
    assert {step_of(place) for place in checkpoints_in(tmp_path)} == found.keys()


def test_a_checkpoint_that_is_being_removed_no_longer_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_steps(tmp_path, 1, 2)

    def killed(place: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prune_checkpoints(tmp_path, tmp_path / step_name(2), keep=1)
    assert [step_of(place) for place in checkpoints_in(tmp_path)] == [2]


def test_a_checkpoint_without_state_cannot_be_continued(
    tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    save_checkpoint(tmp_path / "step-000001", model, tokenizer, card="")
    with pytest.raises(SleuthError, match="can be evaluated but not resumed"):
        load_state(tmp_path / "step-000001")


def test_a_state_that_would_run_code_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "step-000001/state").mkdir(parents=True)
    torch.save({"hostile": Path("x")}, tmp_path / "step-000001/state/state.pt")
    with pytest.raises(SleuthError, match="cannot be read"):
        load_state(tmp_path / "step-000001")
