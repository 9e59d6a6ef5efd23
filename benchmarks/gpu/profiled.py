"""What torch's profiler sees of some work on a card: its kernels, their launches, and how long the host waits."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from benchmarks.gpu.card import synchronise
from benchmarks.gpu.checks import Check

LAUNCH = re.compile(r"(cuda|cu|hip)(Module|Ext|ExtModule)?(LaunchKernel|GraphLaunch|LaunchCooperativeKernel)")
WAIT = re.compile(r"(cuda|cu|hip)\w*Synchronize")
KINDS = {
    "attention": re.compile(r"attention|attend|flash|flex|fmha|_weigh_parts", re.IGNORECASE),
    "optimiser": re.compile(r"adam|multi_tensor|foreach", re.IGNORECASE),
    "products": re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|aten::(mm|addmm|bmm)$", re.IGNORECASE),
    "compiled": re.compile(r"^triton_"),
}
"""Kinds of kernels by their names; the first that fits."""
NAME = 48
"""Characters of a shortened name, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Kernels by shortened name, each with its calls and seconds; launches by the host; the seconds that it waited for
    the card, and those of the whole. On a CPU operators of torch stand in for kernels."""

    kernels: Mapping[str, tuple[int, float]]
    launches: int
    waiting: float
    seconds: float

    @property
    def busy(self) -> float:
        """The seconds of all kernels."""
        return sum(seconds for _, seconds in self.kernels.values())

    def top(self, count: int) -> list[tuple[str, int, float]]:
        """Name, calls and seconds of the kernels that take most."""
        ordered = sorted(self.kernels.items(), key=lambda kernel: -kernel[1][1])
        return [(name, *figures) for name, figures in ordered[:count]]

    def by_kind(self) -> dict[str, float]:
        """The share of each kind in the seconds of all kernels."""
        shares: dict[str, float] = defaultdict(float)
        for name, (_, seconds) in self.kernels.items():
            shares[next((kind for kind, words in KINDS.items() if words.search(name)), "other")] += seconds / self.busy
        return dict(shares)


@contextmanager
def profiling(check: Check) -> Iterator[list[Profiled]]:
    """Within this context torch's profiler runs; the list has what it saw when the context ends. It sees no operators
    of a card's work, which would slow the host down."""
    seen: list[Profiled] = []
    on_card = check.on_card
    sees_kernels = on_card and ProfilerActivity.CUDA in supported_activities()
    synchronise(check.device)
    with profile(activities=[ProfilerActivity.CUDA if sees_kernels else ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        yield seen
        synchronise(check.device)
        seconds = time.perf_counter() - started
    kernels, launched, waiting = dict[str, tuple[int, float]](), 0, 0.0
    for event in profiler.key_averages():
        name = event.key or ""
        if (event.device_type == DeviceType.CPU) == on_card:
            launched += event.count * bool(LAUNCH.match(name))
            waiting += event.self_cpu_time_total / 1e6 * bool(WAIT.match(name))
        elif not event.is_user_annotation:
            taken = (event.self_device_time_total if on_card else event.self_cpu_time_total) / 1e6
            calls, before = kernels.get(short_name(name), (0, 0.0))
            kernels[short_name(name)] = calls + event.count, before + taken
    seen.append(Profiled(kernels=kernels, launches=launched, waiting=waiting, seconds=seconds))


def together(profiles: Sequence[Profiled]) -> Profiled:
    """The sums of several."""
    kernels: dict[str, tuple[int, float]] = {}
    for one in profiles:
        for name, (calls, seconds) in one.kernels.items():
            before = kernels.get(name, (0, 0.0))
            kernels[name] = before[0] + calls, before[1] + seconds
    sums = {name: sum(getattr(one, name) for one in profiles) for name in ("launches", "waiting", "seconds")}
    return Profiled(kernels=kernels, **sums)


def short_name(kernel: str) -> str:
    """A kernel's name without types and parameters, and with what it applies: `void at::native::vectorized_elementwise_
    kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)` -> `vectorized_elementwise_kernel CUDAFunctor_add`."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    if plain.startswith(("aten::", "Memcpy", "Memset")) or "<" not in plain:
        return plain.partition("(")[0].strip()[:NAME]
    head, _, inside = plain.partition("<")
    name = head.rpartition("::")[2]
    applied = re.search(r"\w+_kernel_cuda|\w*Functor\w*|\w+Ops?\b", inside)
    if applied is None and len(name) < 16:
        applied = re.search(r"\w{12,}", inside)
    return f"{name} {applied[0]}"[:NAME] if applied else name[:NAME]


def launches(counts: Mapping[str, int]) -> int:
    """Kernel launches among the profiler's events; a graph of kernels is one."""
    return sum(count for name, count in counts.items() if LAUNCH.match(name))


def found_profile(check: Check, what: str, seen: Profiled, *, times: int = 1, top: int = 0) -> None:
    """Records what was seen of `times` pieces of work: of one, launches, the milliseconds of all kernels and of the
    `top` ones; of all, the shares of waiting and of kinds of kernels."""
    if not seen.kernels:
        check.skip(f"{what}: torch's profiler sees no kernels here, as CUPTI is missing or not permitted")
        return
    if check.on_card:
        check.found(f"{what}: launches", seen.launches / times)
        check.found(f"{what}: host waits, share of its time", seen.waiting / seen.seconds)
    check.found(f"{what}: kernels", 1e3 * seen.busy / times, "ms")
    for kind, share in sorted(seen.by_kind().items(), key=lambda found: -found[1]) if top else ():
        check.found(f"{what}: {kind}, share of kernels", share)
    for name, calls, seconds in seen.top(top):
        check.found(f"{what}: {name}, {_count(calls / times)} calls", 1e3 * seconds / times, "ms")


def _count(number: float) -> str:
    return f"{number:.0f}" if number == round(number) else f"{number:.1f}"
