"""A card that is not there: tensors of the CPU that claim to be on one, and the operations that fake ones launch."""

from __future__ import annotations

from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CARD = torch.device("cuda", 0)


class ClaimedCard(TorchFunctionMode):
    """In this context all tensors say that they are on a card, and are computed on the CPU: the code takes the paths of
    a card with real numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return CARD
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_cpu, args), **kwargs)


def _on_cpu(value: object) -> object:
    return torch.device("cpu") if value in (CARD, str(CARD)) else value


VIEWS = {
    "view",
    "_unsafe_view",
    "expand",
    "slice",
    "t",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "select",
    "detach",
}


class Launches(TorchDispatchMode):
    """In this context `names` counts the operations that a card would launch, by name; views launch nothing."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.repeated_sums = 0
        """Sums at repeated indices in an order that a card does not fix."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "overloadpacket", func).__name__
        if name not in VIEWS and not name.startswith(("empty", "new_empty", "split", "_to_copy_view", "alias")):
            self.names[name] += 1
        if name.startswith("index_add") and len(args[2].unique()) < len(args[2]):
            self.repeated_sums += 1
        return func(*args, **(kwargs or {}))
