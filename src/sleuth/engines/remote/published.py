"""Published weights: a folder visible to all servers, written under a temporary name and renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from sleuth.engines.remote.http_client import HttpClient, HttpClientError
from sleuth.host.atomic import replacing_folder
from sleuth.learn.adapters import ADAPTER, adapter_state, write_adapters
from sleuth.learn.master_weights import WeightSource
from sleuth.types import SleuthError

INITIAL_WEIGHTS = "default"
"""Both servers' name for the weights that they started with: one that returns it has been restarted."""
LOAD_SECONDS = 600.0  # timeout for loading weights; a shared folder may be slow
CARD = "weights.json"
KEPT_VERSIONS = 2
"""Versions kept in the folder: the newest, and the one that a slow server may still be reading."""

LABEL_DIGITS = 12  # of the checksum
HASHED_BYTES = 2**26
"""Bytes of a tensor that one core hashes at a time."""


Part = Literal["merged", "base", "adapters"]
"""What servers are given of a model with adapters: all merged, or what it began with and from then on the adapters."""


class NotLoadedError(HttpClientError):
    """The server could not load the weights; the message is the server's own."""


class EndedError(HttpClientError):
    """The server stopped answering while it took weights, which may have ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the weights, in its own folder. `version` counts the learner's updates, `sha256` is that of
    `checksum`; of a model with adapters it is theirs alone, however they are given to a server.

    `reload` is unique to a load on a server that had lost them: "" at first, then `.RANK.COUNT`.
    `Published(path=Path("/shared/weights/000012-5f1c09aa83d2"), version=12, sha256="5f1c09aa83d2...")`.
    """

    path: Path
    version: int
    sha256: str
    reload: str = ""

    @property
    def label(self) -> str:
        """The weight version that servers report: `000012-5f1c09aa83d2`, after a reload `000012-5f1c09aa83d2.0.3`."""
        return f"{self.version:06d}-{self.sha256[:LABEL_DIGITS]}{self.reload}"


def same_weights(label: str, other: str) -> bool:
    """Whether two labels name the same weights, perhaps by different loads."""
    return label.partition(".")[0] == other.partition(".")[0]


def publish(
    source: WeightSource, shared: Path, version: int, part: Part = "merged", *, keep: Path | None = None
) -> Published:
    """Writes the weights into a new folder below `shared`, a file for each bucket, and removes older ones, but not
    `keep`. Tied weights are written under each of their names, adapters alone into a folder of their own in it.

    A folder's weights never change: vLLM was seen to serve from a cache after the files under a known name had changed
    (its issue 32718). Raises SleuthError if they cannot be written.
    """
    aside, model = shared / f"{version:06d}", source.model
    try:
        with replacing_folder(aside, synced=False) as partial:
            if part == "adapters":
                write_adapters(model, partial / ADAPTER)
                sha256 = checksum(adapter_state(model))
            else:
                sha256 = _write_buckets(source, partial, merged=part == "merged")
            adapters = adapter_state(model) if part == "merged" else None
            published = _named(shared, version, checksum(adapters) if adapters else sha256)
            card = {"version": version, "sha256": sha256}
            (partial / CARD).write_text(json.dumps(card) + "\n", encoding="utf-8")
        shutil.rmtree(published.path, ignore_errors=True)
        aside.rename(published.path)
        others = [
            place for place in shared.iterdir() if (place / CARD).exists() and place not in (published.path, keep)
        ]
        # By version, as a clock may jump; of a run that went back, later ones are the first to go.
        others.sort(key=lambda place: (place.name[:6] <= published.path.name[:6], place.name), reverse=True)
        for place in others[KEPT_VERSIONS - 1 :]:
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise SleuthError(f"engine.weights = {shared}: the weights could not be written ({error})") from None
    return published


def _write_buckets(source: WeightSource, folder: Path, *, merged: bool) -> str:
    """Writes the weights and their config into a folder; returns their checksum."""
    hashes: dict[str, bytes] = {}
    with ThreadPoolExecutor(1) as hashing:
        for number, bucket in enumerate(source.buckets(merged=merged)):
            if number:  # what `save_pretrained` wrote before
                (folder / "model.safetensors").rename(folder / f"bucket-{number:05d}.safetensors")
            state = _untied(bucket)
            hashed = hashing.submit(hashes_of, state)
            source.model.save_pretrained(folder, state_dict=dict(state))  # a copy: it empties the dict it is given
            hashes |= hashed.result()
    return _combined(hashes)


async def load_adapters(client: HttpClient, published: Published, prefix: str = "") -> None:
    """Has a server load published adapters, under their label and in place of all that it has, by the calls that vLLM
    and SGLang name alike below `prefix`. Raises HttpClientError."""
    for card in (await client.get("/v1/models"))["data"]:
        if card.get("parent"):  # it is no model, but adapters of one
            await client.post(f"{prefix}/unload_lora_adapter", {"lora_name": card["id"]}, seconds=LOAD_SECONDS)
    body = {"lora_name": published.label, "lora_path": str(published.path / ADAPTER)}
    await client.post(f"{prefix}/load_lora_adapter", body, seconds=LOAD_SECONDS)


def published_in_memory(source: WeightSource, shared: Path, version: int) -> Published:
    """What `publish` would return; nothing is written."""
    if adapters := adapter_state(source.model):
        return _named(shared, version, checksum(adapters))
    hashes: dict[str, bytes] = {}
    for bucket in source.buckets():
        hashes |= hashes_of(bucket)
    return _named(shared, version, _combined(hashes))


def _named(shared: Path, version: int, sha256: str) -> Published:
    return Published(path=shared / f"{version:06d}-{sha256[:LABEL_DIGITS]}", version=version, sha256=sha256)


def _untied(bucket: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with copies where two names share one tensor.

    Servers of an untied copy need `lm_head.weight`. So does a vLLM for CPUs that serves a tied model: it packs the
    output weights anew only when it loads them under their own name (seen with 0.32.0).
    """
    seen = set[int]()
    for name, weight in bucket.items():
        if weight.data_ptr() in seen:
            bucket[name] = weight.to("cpu", copy=True)
        seen.add(weight.data_ptr())
    return bucket


def checksum(state: Mapping[str, torch.Tensor]) -> str:
    """A sha256 of the names, dtypes, shapes and values of tensors, however files hold them."""
    return _combined(hashes_of(state))


def hashes_of(state: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """What `checksum` hashes of each tensor: what it is, and the hashes of its blocks, computed by all
    cores."""

    def digest_of(block: torch.Tensor) -> bytes:
        return hashlib.sha256(block.cpu().numpy().data).digest()

    hashes = {}
    with ThreadPoolExecutor(os.cpu_count()) as cores, torch.inference_mode():
        digests = {
            name: [cores.submit(digest_of, part) for part in weight.reshape(-1).view(torch.uint8).split(HASHED_BYTES)]
            for name, weight in state.items()
        }
        for name, weight in state.items():
            described = f"{name} {weight.dtype} {tuple(weight.shape)}\n"
            hashes[name] = described.encode() + b"".join(digest.result() for digest in digests[name])
    return hashes


def _combined(hashes: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(hashed for _, hashed in sorted(hashes.items()))).hexdigest()
