"""`manifest.json`: what a run was made from and with."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.recipe import Recipe
from sleuth.runs.atomic import write_text

_WAY_TO_A_JUDGE = re.compile(r"\.judge\.(urls\.\d+|seconds|at_once|budget|key_variable|verdicts)$")
_WAY_TO_A_POOL = re.compile(r"\.engine(\.(urls\.\d+|weights|requests_at_once|seconds|unavailable_timeout|sleeps))?$")
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "tantivy")


class Manifest:
    """Versions, seed, hashes and origin of a run; each continuation is added, nothing is taken away."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, recipe: Recipe) -> None:
        """Write the first manifest of a run, or note in the one that is there that the run goes on."""
        session = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions()}
        if self.path.exists():
            manifest = self.read()
            manifest["continued"].append(session)
        else:
            manifest = {
                "started": session["at"],
                "versions": session["versions"],
                "platform": platform.platform(),
                "seed": recipe.seed,
                "hashes": {"recipe": recipe_hash(recipe)},
                "continued": [],
            }
        manifest["recipe"] = recipe.resolved_from.model_dump(mode="json")
        self._write(manifest)

    def add_hashes(self, **hashes: str) -> None:
        """Keep the hash of something the run read: `add_hashes(corpus="5f1c...")`."""
        manifest = self.read()
        manifest["hashes"].update(hashes)
        self._write(manifest)

    @property
    def threads(self) -> int | None:
        """The number of threads that the run began with; None before its first model, and on runs older than this."""
        return self.read().get("threads")

    def set_threads(self, number: int) -> None:
        """Keep the number of threads, on which the last bits of results can depend."""
        self._write(self.read() | {"threads": number})

    def set_overlap(self, overlaps: Sequence[Mapping[str, Any]]) -> None:
        """Keep how many questions of which evaluation are also trained on, and in which stage."""
        manifest = self.read()
        manifest["overlap"] = list(overlaps)
        self._write(manifest)

    def set_pool(self, stage: str, servers: Sequence[Mapping[str, Any]]) -> None:
        """Keep which servers write a stage's episodes, and what they were found to do."""
        manifest = self.read()
        manifest.setdefault("pools", {})[stage] = list(servers)
        self._write(manifest)

    def add_roll_back(self, stage: str, *, left: int, begun_at: int) -> None:
        """Note that a stage left step `left` to begin again at step `begun_at`, with other draws."""
        manifest = self.read()
        manifest.setdefault("rolled_back", []).append({"stage": stage, "left": left, "begun_at": begun_at})
        self._write(manifest)

    def add_cost(self, stage: str, *, host_memory: int = 0, gpu_memory: int = 0, **seconds: float) -> None:
        """Add to what a stage has cost: seconds by what they went to, and bytes of memory at their peak.

        `add_cost("grpo", total=3.5)` and `add_cost("grpo", total=2.0, saving=0.2)` leave 5.5 and 0.2.
        """
        manifest = self.read()
        cost = manifest.setdefault("costs", {}).setdefault(stage, {"seconds": {}})
        for name, value in seconds.items():
            cost["seconds"][name] = cost["seconds"].get(name, 0.0) + value
        for name, value in (("host_memory_bytes", host_memory), ("gpu_memory_bytes", gpu_memory)):
            cost[name] = max(cost.get(name, 0), value)
        self._write(manifest)

    def set_rank_memory(self, stage: str, peaks: Sequence[tuple[int, int]]) -> None:
        """Keep how many bytes of (host memory, GPU memory) each rank has held at its peak by the end of a stage."""
        manifest = self.read()
        manifest["costs"][stage]["ranks_memory_bytes"] = [list(peak) for peak in peaks]
        self._write(manifest)

    def costs(self) -> dict[str, Any]:
        """What every stage has cost so far, by its name."""
        return self.read().get("costs", {})

    def roll_backs(self, stage: str) -> int:
        """How often a stage was rolled back."""
        return sum(entry["stage"] == stage for entry in self.read().get("rolled_back", ()))

    def read(self) -> dict[str, Any]:
        """The manifest as it stands."""
        return json.loads(self.path.read_text(encoding="utf-8"))

    def _write(self, manifest: dict[str, Any]) -> None:
        write_text(self.path, json.dumps(manifest, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Name -> version of Python, of Sleuth and of the libraries that can move a number. Imports none of them."""
    found = {"python": platform.python_version(), "sleuth": __version__}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):  # a machine that needs one of them not at all can still train
            found[name] = metadata.version(name)
    return found


def identity(recipe: Recipe) -> dict[str, Any]:
    """What makes a run that run: dotted key -> value of everything but where it came from, how early it ends, who is
    told, where judges and engines are to be reached (another server of the same model says the same), and whose memory
    it takes."""
    table = recipe.model_dump(mode="json", exclude={"resolved_from", "trackers"})
    return {
        key: value
        for key, value in _flat(table, "")
        if not key.endswith((".stop_after", ".cpu_offload"))
        and not _WAY_TO_A_JUDGE.search(key)
        and not _WAY_TO_A_POOL.search(key)
        and (
            value or not key.endswith((".engine.max_policy_lag", ".lora"))
        )  # absent, as in runs that are older than the key
    }


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of `identity`."""
    return hashlib.sha256(json.dumps(identity(recipe), sort_keys=True).encode()).hexdigest()


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if entries is None:
        yield key.removeprefix("."), value
        return
    for name, inner in entries:
        yield from _flat(inner, f"{key}.{name}")
