"""One check in a process of its own: what it may use, and where its figures go."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.card import FAST, describe, peak_bytes, peak_flops
from benchmarks.gpu.figures import Figure

if TYPE_CHECKING:
    from benchmarks.gpu.scales import Scale  # imports transformers, for which the table of checks need not wait


@dataclass(kw_only=True)
class Check:
    """A running check: the device and sizes that it computes with, an empty folder, and the file of its records. Each
    record is written at once, so that a crash loses none."""

    name: str
    device: torch.device
    scale: Scale
    folder: Path
    records: Path
    ends: float = math.inf  # by time.monotonic(): when the check is ended
    _last: float = field(default_factory=time.monotonic)

    def found(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Records a figure with its bar, and the seconds since the last one."""
        now = time.monotonic()
        figure = Figure(
            check=self.name,
            name=name,
            value=float(value),
            unit=unit,
            at_least=at_least,
            at_most=at_most,
            seconds=round(now - self._last, 2),
        )
        self._last = now
        self._record({"figure": asdict(figure)})

    def skip(self, line: str) -> None:
        """Records that something was left out, and why."""
        self._record({"skipped": line})

    @property
    def on_card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds until the check is ended."""
        return self.ends - time.monotonic()

    def speed_bar(self, bar: float) -> float | None:
        """The bar of a speed, which holds on cards with a peak of `FAST`."""
        peak = peak_flops(describe(self.device)["name"]) if self.on_card else None
        return bar if peak is not None and peak >= FAST and self.scale.name == "real" else None

    def run(self, work: Callable[[Check], None]) -> bool:
        """Whether `work` ended well; an error is recorded and its traceback printed."""
        message = None
        try:
            work(self)
        except Exception as error:  # any: the other checks go on, and this one is a missed bar
            traceback.print_exc()
            message = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        self._record({"ended": {"message": message, "peak_memory_bytes": peak_bytes(self.device)}})
        return message is None

    def _record(self, record: dict[str, Any]) -> None:
        with self.records.open("a") as file:
            file.write(json.dumps(record) + "\n")


def plan_lacks() -> str | None:
    """A package that a plan needs and that is not here; None if it has all."""
    return next((name for name in ("pydantic", "tomli_w") if find_spec(name) is None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Where a check is defined, `module:function`, the seconds that it may take at least, and its group."""

    work: str
    limit: int
    group: int = 1

    def load(self) -> Callable[[Check], None]:
        module, name = self.work.split(":")
        return getattr(import_module(module), name)


CHECKS = {
    "card": Planned(work="benchmarks.gpu.learner:card", limit=25),
    "step": Planned(work="benchmarks.gpu.step:step", limit=120),
    "update": Planned(work="benchmarks.gpu.learner:update", limit=45),
    "even": Planned(work="benchmarks.gpu.sampler:even", limit=35),
    "tools": Planned(work="benchmarks.gpu.sampler:tools", limit=50),
    "profile": Planned(work="benchmarks.gpu.profile:profile", limit=45),
    "peers": Planned(work="benchmarks.gpu.peers:peers", limit=75),
    "graphs": Planned(work="benchmarks.gpu.graphs:graphs", limit=40),
    "attention": Planned(work="benchmarks.gpu.learner:attention", limit=40),
    "qwen3_1.7b": Planned(work="benchmarks.gpu.sizes:qwen3_1_7b", limit=50, group=2),
    "qwen2.5_3b": Planned(work="benchmarks.gpu.sizes:qwen2_5_3b", limit=50, group=2),
    "qwen3_4b_lora": Planned(work="benchmarks.gpu.sizes:qwen3_4b_lora", limit=60, group=2),
    "refiner": Planned(work="benchmarks.gpu.sizes:refiner", limit=60, group=2),
    "long": Planned(work="benchmarks.gpu.sizes:long", limit=50, group=2),
    "ragged": Planned(work="benchmarks.gpu.sampler:ragged", limit=45, group=2),
    "greedy": Planned(work="benchmarks.gpu.sampler:greedy", limit=40, group=2),
    "paged": Planned(work="benchmarks.gpu.sampler:paged", limit=25, group=2),
    "windows": Planned(work="benchmarks.gpu.learner:windows", limit=25, group=2),
    "vectors": Planned(work="benchmarks.gpu.vectors:vectors", limit=20, group=2),
    "servers": Planned(work="benchmarks.gpu.servers:servers", limit=50, group=2),
}
"""By group, in the order in which they run: of most value first. The limits of a group together are the time of a run;
what one check leaves of its own, the next ones may take."""


def groups(checks: Mapping[str, Planned]) -> list[int]:
    """The numbers of the groups, rising."""
    return sorted({planned.group for planned in checks.values()})
