"""A place at which a computation is cut in two, so that one side's backward pass need not wait for the other's."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor


class ActivationBoundary:
    """Tensors that one side makes and the other reads, by name. The other reads leaves; the gradient that gathers in a
    leaf is what the made tensor is owed."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Tensor] = {}
        self._leaves: dict[Hashable, Tensor] = {}

    def keep(self, name: Hashable, made: Tensor) -> None:
        """Made on this side. What is made again (by a layer that runs a second time) is the same, and not needed."""
        if name not in self._made:
            self._made[name] = made
            self._leaves[name] = made.detach().requires_grad_(made.requires_grad)

    def __getitem__(self, name: Hashable) -> Tensor:
        return self._leaves[name]

    def owed(self) -> tuple[list[Tensor], list[Tensor]]:
        """What was made and has a gradient by now, and the gradients."""
        owed = [(self._made[name], leaf.grad) for name, leaf in self._leaves.items() if leaf.grad is not None]
        return [made for made, _ in owed], [gradient for _, gradient in owed]
