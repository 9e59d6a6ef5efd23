"""Functions that torch compiles into few kernels, for the learner's passes on a card, where each operation of its own
reads and writes all of its tensors.

Nothing is fused on a CPU, whose loops numba compiles, nor in the engine, whose batches are too small to pay for the
guards of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sleuth.host.threads import to_stderr
from sleuth.kernels.allocator import is_out_of_memory

OPTIONS: dict[str, Any] = {"deterministic": True}
"""The order of sums is fixed, where inductor would otherwise time several and take the fastest."""


class _Switch:
    on = True


def switch_off() -> None:
    """Fuses nothing in later passes of this process."""
    _Switch.on = False


def is_on() -> bool:
    """Whether passes that begin now fuse. One that has begun goes on as it is: layers that a checkpoint runs again
    must save the same tensors."""
    return _Switch.on


def on_card(*tensors: Tensor) -> bool:
    """Whether fused functions take these tensors: on a card, and no subclass, such as a shard (DTensor)."""
    return all(tensor.is_cuda and type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)


class Fused:
    """A function of tensors, compiled at its first call: one graph for all numbers of rows from 2 on.

    Positional arguments have these rows as their first dimension (None is skipped), keyword arguments have fixed
    shapes; all other dimensions are constants of the graph. Call it without gradients, with detached tensors: autograd
    belongs to its caller, so that one graph serves all modes. If it cannot be compiled, as without triton, all
    functions run as they are written from then on, and `is_on` is False.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *by_row: Tensor | None, **fixed: Any) -> Any:
        if not _Switch.on:
            return self._function(*by_row, **fixed)
        try:
            return self._fused(*by_row, **fixed)
        except Exception as error:  # of the compiler, of triton or of the C++ compiler: each has its own classes
            if is_out_of_memory(error):
                raise
            switch_off()
            first = (str(error).splitlines() or [""])[0]
            to_stderr(f"fused functions are off, which makes updates slower: {type(error).__name__}: {first}")
        return self._function(*by_row, **fixed)

    def _fused(self, *by_row: Tensor | None, **fixed: Any) -> Any:
        from torch._dynamo import maybe_mark_dynamic  # seconds, which only a card needs

        if self._compiled is None:
            self._compiled = torch.compile(self._function, fullgraph=True, dynamic=False, options=OPTIONS)
        for tensor in by_row:
            if tensor is not None:
                maybe_mark_dynamic(tensor, 0)
        return self._compiled(*by_row, **fixed)


def precision_of(tensor: Tensor) -> torch.dtype:
    """The dtype in which fused functions compute: fp32 for 16 bits."""
    return torch.promote_types(tensor.dtype, torch.float32)


@Fused
def softmax_figures(logits: Tensor, targets: Tensor, *, inverse_temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax of logits, which are read in their own dtype and computed in fp32.

    For each row of logits (n, V) over a temperature: log-probability of its target, entropy, log-sum-exp; (n,)
    each.
    """
    exact = logits.to(precision_of(logits)) * inverse_temperature
    largest = exact.amax(dim=-1, keepdim=True)  # (n, 1)
    shifted = exact - largest
    exponentials = shifted.exp()
    total = exponentials.sum(dim=-1)
    entropy = total.log() - (shifted * exponentials).sum(dim=-1) / total
    lse = total.log() + largest[:, 0]
    at_target = logits.gather(1, targets[:, None])[:, 0].to(lse.dtype) * inverse_temperature
    return at_target - largest[:, 0] - total.log(), entropy, lse


@Fused
def write_logits_grad(
    logits: Tensor, targets: Tensor, lse: Tensor, scale: Tensor, *, inverse_temperature: Tensor
) -> None:
    """Overwrites logits (n, V) with `scale` (n,) times (one-hot minus softmax over the temperature)."""
    exact = logits.to(precision_of(logits)) * inverse_temperature
    softmax = (exact - lse[:, None]).exp()
    words = torch.arange(logits.shape[1], device=logits.device)
    one_hot = (words[None] == targets[:, None]).to(softmax.dtype)
    logits.copy_((one_hot - softmax) * scale[:, None])
