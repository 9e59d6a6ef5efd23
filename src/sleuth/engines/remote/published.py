"""Weights on their way from the learner to servers: a folder that all of them see, written aside and renamed."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.runs.atomic import replacing_folder
from sleuth.types import SleuthError

CARD = "weights.json"
KEPT = 2
"""Weights that stay in the folder: the newest, and those that a slow server may still be reading."""

SHORT = 12  # digits of a checksum in a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights in a folder of their own. `version` counts the learner's updates, `sha256` is of the weight files.

    `Published(path=Path("/shared/weights/000012-5f1c09aa83d2"), version=12, sha256="5f1c09aa83d2...")`.
    """

    path: Path
    version: int
    sha256: str

    @property
    def label(self) -> str:
        """What servers are told to call these weights: `000012-5f1c09aa83d2`."""
        return f"{self.version:06d}-{self.sha256[:SHORT]}"


def publish(model: PreTrainedModel, shared: Path, version: int) -> Published:
    """Write the model's weights into a folder of their own below `shared`, and remove older ones.

    No folder ever holds other weights than at first: vLLM was seen to serve from a cache when the files under a name
    that it knew had changed (its issue 32718). Raises SleuthError where they cannot be written.
    """
    aside = shared / f"{version:06d}"
    try:
        with replacing_folder(aside) as partial:
            model.save_pretrained(partial)
            sha256 = checksum(partial)
            card = {"version": version, "sha256": sha256}
            (partial / CARD).write_text(json.dumps(card) + "\n", encoding="utf-8")
        published = Published(path=shared / f"{version:06d}-{sha256[:SHORT]}", version=version, sha256=sha256)
        shutil.rmtree(published.path, ignore_errors=True)
        aside.rename(published.path)
        _forget_older(shared, published.path)
    except OSError as error:
        raise SleuthError(f"engine.weights = {shared}: the weights could not be written ({error})") from None
    return published


def checksum(folder: Path) -> str:
    """sha256 of the weight files of a folder, in the order of their names."""
    digest = hashlib.sha256()
    for file in _weight_files(folder):
        with open(file, "rb") as content:
            while block := content.read(2**24):
                digest.update(block)
    return digest.hexdigest()


def load_published(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of a folder in the place of the model's. Raises SleuthError, with the model as it was, where they
    are not all there, not the model's, or not those of the checksum beside them."""
    files = _weight_files(folder)
    if not files:
        raise SleuthError(f"{folder}: holds no .safetensors file")
    card = folder / CARD
    if card.exists() and (told := json.loads(card.read_text(encoding="utf-8"))["sha256"]) != (is_ := checksum(folder)):
        raise SleuthError(f"{folder}: the weights have checksum {is_[:SHORT]}, and {CARD} says {told[:SHORT]}")
    try:
        state = {name: weight for file in files for name, weight in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise SleuthError(f"{folder}: cannot be read ({error})") from None
    ours = model.state_dict()
    for name, weight in state.items():
        if name not in ours or ours[name].shape != weight.shape:
            here = tuple(ours[name].shape) if name in ours else "no such weight"
            raise SleuthError(f"{folder}: {name} is {tuple(weight.shape)} there and {here} in the model")
    held = {ours[name].data_ptr() for name in state}  # tied weights are written once
    if missing := [name for name, weight in ours.items() if name not in state and weight.data_ptr() not in held]:
        raise SleuthError(f"{folder}: lacks {len(missing)} of the model's weights, such as {missing[0]}")
    with torch.no_grad():
        for name, weight in state.items():
            ours[name].copy_(weight)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _forget_older(shared: Path, newest: Path) -> None:
    others = [place for place in shared.iterdir() if (place / CARD).exists() and place != newest]
    others.sort(key=lambda place: place.stat().st_mtime, reverse=True)
    for place in others[KEPT - 1 :]:
        shutil.rmtree(place, ignore_errors=True)
