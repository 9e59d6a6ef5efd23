"""Checkpoints: a Hugging Face folder that any loader reads, with what Sleuth needs to go on beside it.

`step-000100/` holds the model (safetensors), the tokenizer, `protocol.json`, `README.md` and `state/`. It is written
as `step-000100.partial` and renamed when it is on the disk, so that a folder with its final name is always whole.
torch is imported where it is used: a report lists checkpoints without it.
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleuth.runs.atomic import PARTIAL, replacing_folder
from sleuth.runs.protocol import ProtocolCard
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STATE = Path("state") / "state.pt"


def step_name(step: int) -> str:
    """`step-000100`: the name of step 100's checkpoint and, with an ending, of its rollouts."""
    return f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    card: str,
    protocol: ProtocolCard | None = None,
    state: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint whole or not at all.

    `card` is the text of `README.md`. `state` is what the stage needs to go on, in tensors and plain Python values
    only, because it is read again without unpickling anything else; TypeError names what is neither.
    """
    import torch

    _check_plain(state, "state")
    with replacing_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / "README.md").write_text(card, encoding="utf-8")
        if protocol is not None:
            protocol.write(partial)
        if state is not None:
            (partial / STATE).parent.mkdir()
            torch.save(dict(state), partial / STATE)


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The stage's state, tensors on the CPU. `SleuthError` where there is none or it cannot be read."""
    import torch

    path = checkpoint / STATE
    if not path.exists():
        raise SleuthError(f"{path}: is not there; this checkpoint can be evaluated but not continued")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise SleuthError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def checkpoints_in(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    whole = (place for place in directory.iterdir() if re.fullmatch(r"step-\d{6,}", place.name) and place.is_dir())
    return sorted(whole, key=step_of)


def latest_checkpoint(directory: Path) -> Path | None:
    """The checkpoint of the highest step, if there is one."""
    return next(reversed(checkpoints_in(directory)), None)


def prune_checkpoints(directory: Path, newest: Path, keep: int, after: int = 0) -> None:
    """Remove what `newest`, just saved, has outlived: all but the `keep` last checkpoints from step `after` to its own;
    those of later steps, which grew out of where this stage had ended before it went on; and what killed processes left
    half written. What came until `after` belongs to another stage, which this one may still need."""
    if keep < 1:
        raise ValueError(f"keep = {keep}: a run keeps at least its last checkpoint")
    there, last = checkpoints_in(directory), step_of(newest)
    own = [place for place in there if after < step_of(place) <= last]
    later = [place for place in there if step_of(place) > last]
    for place in [*own[:-keep], *later, *directory.glob(f"step-*{PARTIAL}")]:
        shutil.rmtree(place)


def _check_plain(value: Any, where: str) -> None:
    import torch

    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_plain(name, f"a key of {where}")
            _check_plain(inner, f"{where}[{name!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_plain(inner, f"{where}[{index}]")
    elif type(value) not in (type(None), bool, int, float, str, bytes) and not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}: a checkpoint's state is tensors and plain values only")
