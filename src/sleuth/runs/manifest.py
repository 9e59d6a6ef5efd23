"""`manifest.json`: versions, seed, hashes, costs and history of a run."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.host.atomic import write_text
from sleuth.host.hardware import machine
from sleuth.host.model_path import require_file
from sleuth.recipe import Recipe
from sleuth.runs.chain import recorded, run_id
from sleuth.types import SleuthError

_MODEL_ADDRESS = re.compile(
    r"\.(judge|teacher)\.(urls(\.\d+)?|seconds|at_once|budget|key_variable|verdicts"
    r"|launch|command|cards(\.\d+)?|memory|port|arguments(\.\d+)?)$"
)
_POOL_ADDRESS = re.compile(
    r"\.engine(\.(urls(\.\d+)?|weights|requests_at_once|seconds|unavailable_timeout|sleeps|launch|command|cards(\.\d+)?"
    r"|memory|port|arguments(\.\d+)?))?$"
)
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "numba", "tantivy", "peft")
SAVED_AS = Path("state") / "run.json"
"""The file of a checkpoint that names its run and step."""
_PARTS = {"versions": dict, "hashes": dict, "continued": list}


def saved_as(checkpoint: Path) -> tuple[str, int] | None:
    """The run and the step that a checkpoint was saved as; None if it does not say so, as those of earlier versions."""
    try:
        require_file(checkpoint / SAVED_AS)
        named = json.loads((checkpoint / SAVED_AS).read_bytes())
        return str(named["run"]), int(named["step"])
    except (SleuthError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


class Manifest:
    """Reads and writes the manifest. Each continuation is appended; nothing is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, recipe: Recipe) -> None:
        """Writes the first manifest of a run, or records in an existing one that the run continues."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if self.path.exists():
            manifest = self.read()
            manifest["continued"].append({"at": now, "versions": versions(), "machine": machine()})
        else:
            manifest = {
                "started": now,
                "versions": versions(),
                "machine": machine(),
                "platform": platform.platform(),
                "seed": recipe.seed,
                "hashes": {"recipe": recipe_hash(recipe)},
                "continued": [],
            }
        if not manifest.get("run"):
            manifest["run"] = run_id(self.path.parent) or self._run_of_checkpoints() or secrets.token_hex(8)
        manifest["recipe"] = recipe.resolved_from.model_dump(mode="json")
        self._write(manifest)

    def add_hashes(self, **hashes: str) -> None:
        """Stores hashes of what the run read: `add_hashes(corpus="5f1c...")`."""
        manifest = self.read()
        manifest["hashes"].update(hashes)
        self._write(manifest)

    def record(self, key: str, value: Any, *, stage: str | None = None) -> None:
        """Stores a value under a key, or under a key of a stage: `record("gates", {"passes": True}, stage="gate")`."""
        manifest = self.read()
        (manifest if stage is None else manifest.setdefault(key, {}))[stage or key] = value
        self._write(manifest)

    def recorded(self, key: str, stage: str) -> Any:
        """The value of a stage under a key; None without one."""
        return self.read().get(key, {}).get(stage)

    @property
    def run(self) -> str | None:
        """The id of the run; None in runs of earlier versions."""
        return self.read().get("run")

    def _run_of_checkpoints(self) -> str | None:
        """The run that the checkpoints name, of a folder whose manifest is lost."""
        places = sorted(self.path.parent.glob(f"checkpoints/step-*/{SAVED_AS}"))
        return next((named[0] for place in places if (named := saved_as(place.parents[1])) is not None), None)

    def add_roll_back(self, stage: str, *, left: int, begun_at: int) -> None:
        """Records that a stage was rolled back from step `left` to step `begun_at`, to continue with other draws."""
        manifest = self.read()
        manifest.setdefault("rolled_back", []).append({"stage": stage, "left": left, "begun_at": begun_at})
        self._write(manifest)

    def add_cost(self, stage: str, *, host_memory: int = 0, gpu_memory: int = 0, **seconds: float) -> None:
        """Adds to the cost of a stage: seconds by purpose, and bytes of memory, of which the maximum is kept.

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
        """Stores the peak bytes of (host memory, GPU memory) of each rank at the end of a stage."""
        manifest = self.read()
        manifest["costs"][stage]["ranks_memory_bytes"] = [list(peak) for peak in peaks]
        self._write(manifest)

    def roll_backs(self, stage: str) -> int:
        """The number of times that a stage was rolled back."""
        return sum(entry["stage"] == stage for entry in self.read().get("rolled_back", ()))

    def read(self) -> dict[str, Any]:
        """The contents of the file. Raises SleuthError if it is damaged."""
        try:
            manifest = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SleuthError(
                f"{self.path}: no such file; the next `sleuth train` of this run writes a new one"
            ) from None
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict) or any(type(manifest.get(name)) is not kind for name, kind in _PARTS.items()):
            raise SleuthError(
                f"{self.path}: is damaged: restore it, or remove it to continue without the run's history (versions, "
                "costs and roll-backs so far)"
            )
        return manifest

    def _write(self, manifest: dict[str, Any]) -> None:
        with recorded(self.path):
            write_text(self.path, json.dumps(manifest, indent=2) + "\n")


def changes_since(manifest: Mapping[str, Any]) -> list[str]:
    """What decides the bytes of results and is another now than when a run began: `torch 2.12.0 and is 2.13.0 now`.
    What an older manifest does not name is not compared."""
    before = {**manifest["versions"], **manifest.get("machine", {})}
    now = {**versions(), **machine()}
    return [
        f"{name} {before[name] or 'none'} and is {now.get(name) or 'none'} now"
        for name in before
        if before[name] != now.get(name)
    ]


def versions() -> dict[str, str]:
    """Versions of Python, of Sleuth and of the libraries that can change a result, by name; empty for one that is not
    installed. Imports none of them."""
    found = {"python": platform.python_version(), "sleuth": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # not every run needs every library
            found[name] = ""
    return found


MAY_CHANGE = (".stop_after", ".max_missing_fraction", ".max_no_signal_fraction", ".gated")
MAY_CHANGE += (".cpu_offload", ".ranks_per_replica")
"""Endings of keys that decide where a run stops, or where its state is, and nothing that it computes."""


def identity(recipe: Recipe) -> dict[str, Any]:
    """The recipe as dotted key -> value, without the keys that may change while a run continues: its origin, `card`,
    `stop_after`, trackers, addresses of judges, teachers and engines (another server of the same model answers the
    same), `required_retriever`, where the state is, and the limits at which a run stops (`MAY_CHANGE`)."""
    table = recipe.model_dump(mode="json", exclude={"resolved_from", "trackers", "card"})
    return {
        key: value
        for key, value in flat(table)
        if not key.endswith(MAY_CHANGE)
        and not _MODEL_ADDRESS.search(key)
        and not _POOL_ADDRESS.search(key)
        and ".env.required_retriever" not in key  # refuses a retriever, and changes nothing
        # unset equals absent, as in runs that are older than these keys
        and (value or not key.endswith((".engine.max_policy_lag", ".lora", ".loss.function")))
    }


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of `identity`."""
    return hashlib.sha256(json.dumps(identity(recipe), sort_keys=True).encode()).hexdigest()


def flat(value: Any, key: str = "", *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """The values of nested tables, and of `lists`, by their dotted keys: `stage.0.steps`."""
    if isinstance(value, Mapping):
        entries = value.items()
    elif lists and isinstance(value, list):
        entries = enumerate(value)
    else:
        yield key, value
        return
    for name, inner in entries:
        yield from flat(inner, f"{key}.{name}" if key else str(name), lists=lists)
