"""A card that is not there: tensors of the CPU that claim to be on one, and the operations that fake ones launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

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


READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
"""Operators for which the host waits: it gets numbers, or as many results as numbers say."""
READ = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.new_tensor}


class HostAndCard(TorchDispatchMode):
    """In this context (see `host_and_card`) tensors are on the host or on a card, and stay where they are; all are
    computed on the CPU. `waits` names what the host waited for. Operators on tensors of both fail, as they would."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._on_card: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}

    def put(self, value: Any) -> Any:
        """The tensors in `value` belong to the card."""
        return self._keep(self._on_card, value)

    def pin(self, value: Tensor) -> Tensor:
        """A copy in pinned memory."""
        return self._keep(self._pinned, value.clone())

    def holds(self, value: object) -> bool:
        """Whether it is a tensor of the card."""
        return isinstance(value, Tensor) and StorageWeakRef(value.untyped_storage()).cdata in self._on_card

    def is_pinned(self, value: Tensor) -> bool:
        return StorageWeakRef(value.untyped_storage()).cdata in self._pinned

    @staticmethod
    def _keep(places: dict[int, StorageWeakRef], value: Any) -> Any:
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                place = StorageWeakRef(tensor.untyped_storage())  # kept, so that its number is not given again
                places[place.cdata] = place
        return value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        held = [self.holds(tensor) for tensor in tensors]
        if not any(held):
            return func(*args, **kwargs)
        name = getattr(func, "overloadpacket", func).__name__
        if name in READS:
            self.waits.append(name)
        if name.startswith(("index", "_index")) and any(tensor.dtype == torch.bool for tensor in tensors[1:]):
            self.waits.append(f"{name} by a mask")
        strangers = [tensor for tensor, inside in zip(tensors, held, strict=True) if not inside and tensor.dim()]
        if strangers and isinstance(func, torch._ops.OpOverload):
            raise RuntimeError(f"{func} of tensors of the host and of the card")
        return self.put(func(*args, **kwargs))


class _Placed(TorchFunctionMode):
    """What a tensor of the card says of itself, and moves between card and host."""

    def __init__(self, card: HostAndCard) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(self, func, types, args=(), kwargs=None):
        card, kwargs = self.card, kwargs or {}
        if func == Tensor.device.__get__:
            return CARD if card.holds(args[0]) else torch.device("cpu")
        if func == vars(torch._C.TensorBase)["is_cuda"].__get__:
            return card.holds(args[0])
        if func == Tensor.pin_memory:
            return card.pin(args[0])
        if func == Tensor.backward:  # of a loss; our functions' own passes are Python, which needs this mode
            with self:
                loss, run = args[0], Variable._execution_engine.run_backward
                ones = card.put(torch.ones_like(loss))
                return run((loss,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        if func in READ and card.holds(args[0]):
            card.waits.append(func.__name__)
        wanted = [value for value in tree_leaves((args[1:], kwargs)) if value in (CARD, str(CARD))]
        args, kwargs = tree_map(_on_cpu, (args, kwargs))
        if func != Tensor.to or not args:
            made = func(*args, **kwargs)
            return card.put(made) if wanted else made
        here, there = card.holds(args[0]), bool(wanted)
        moves = any(isinstance(value, torch.device) for value in (*args[1:], *kwargs.values())) and here != there
        if moves and not (there and kwargs.get("non_blocking") and card.is_pinned(args[0])):
            card.waits.append("to")
        made = func(*args, **kwargs)
        if not moves:
            return made
        made = made.clone()
        return card.put(made) if there else made


@contextmanager
def host_and_card(*models: torch.nn.Module, free: int = 0) -> Iterator[HostAndCard]:
    """A `HostAndCard` with these models on the card, which has `free` bytes; functions that would be compiled run as
    they are."""
    card = HostAndCard()
    for model in models:
        card.put([*model.parameters(), *model.buffers()])
    # A checkpoint compares devices, which a mode does not tell it while torch handles a function.
    same = patch.dict(checkpoint._allowed_determinism_checks_to_fns, default=lambda tensor: tensor.shape)
    has = patch.object(torch.cuda, "mem_get_info", lambda device: (free, free))
    with torch.compiler.set_stance("force_eager"), same, has, _Placed(card), card:
        yield card
