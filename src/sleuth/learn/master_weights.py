"""Master weights, the fp32 copies that an optimiser steps when a model computes in 16 bits; and weights for servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.learn.adapters import base_state, merged_state
from sleuth.learn.logprobs import PassFigures, TokenLoss, add_gradients, is_plain, token_loss
from sleuth.learn.optim import card_batch, in_batches
from sleuth.learn.prefix_tree import Pack
from sleuth.ranks import ALONE, Ranks

HALF = (torch.bfloat16, torch.float16)
Result = TypeVar("Result")
PIECE = 2**24
"""Elements that are copied at once between a card and the host."""


class MasterWeights:
    """A model held whole by this process, and the tensors to step for its trainable weights.

    An RL step is often smaller than the spacing of bf16, so 16-bit weights have an fp32 master that accumulates small
    steps and is copied to the model after each. An fp32 weight is its own master.

    With `offload` every trained weight has a master in host memory, where gradients and moments are too and the
    optimiser runs (arXiv:2101.06840). Losses, gradients and saved states are those without it.
    """

    ranks: Ranks = ALONE
    """The processes that hold the model together."""
    replicas = 1
    """How often they hold it."""

    def __init__(self, model: PreTrainedModel, *, offload: bool = False) -> None:
        self.module = model
        """The module that computes: the model itself."""
        self._stored = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._staging = _Staging(model.device) if offload else None
        self.tensors: dict[str, Tensor] = {
            name: self._master(weight, torch.float32 if weight.dtype in HALF else weight.dtype)
            for name, weight in self._stored.items()
        }
        """Parameter name -> the tensor to step."""

    def _master(self, weight: nn.Parameter, dtype: torch.dtype) -> Tensor:
        if self._staging is not None:
            master = torch.empty(weight.shape, dtype=dtype)
            self._staging.down(master, weight.detach())
            return master.requires_grad_()
        return weight if weight.dtype == dtype else weight.detach().to(dtype).requires_grad_()

    def run(self, function: Callable[..., tuple[Tensor, ...]], *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        """The result of `function(model, ...)`, such as `token_logprobs`. The ranks that hold a model together call it
        at the same time, each with its own pack."""
        return function(self.module, *arguments, **options)

    @property
    def takes_chunks(self) -> bool:
        """Whether `add_gradients` keeps to its budget for a pack of any size."""
        return self.module.device.type == "cpu" and not is_plain(self.module)

    def add_gradients(
        self, part: Pack, loss: TokenLoss, reference: Tensor | None, *, temperature: float, budget: int
    ) -> PassFigures:
        """Adds the gradients of the model's `token_loss` to those of `tensors`."""
        if self.takes_chunks:
            return add_gradients(
                self.module,
                part,
                loss,
                reference,
                temperature=temperature,
                budget=budget,
                collect=self.collect_gradients,
            )
        share, logprobs, entropy = self.run(token_loss, part, loss, reference, temperature=temperature)
        share.backward()
        self.collect_gradients()
        return PassFigures(loss=share.detach(), logprobs=logprobs, entropy=entropy, computed=len(part.tree))

    def set_aside(self) -> None:
        """Called before an update: nothing reads the model until `restore` or `publish`. Sharded models free its
        memory. Does nothing here."""

    def restore(self) -> None:
        """Called after a failed update: makes the model readable again, with its old weights."""

    def source(self) -> WeightSource:
        """What servers are given the weights from."""
        return WeightSource(self.module)

    def stay_in_shards(self) -> None:
        """From here on no rank holds the whole model but in `whole`. Does nothing here."""

    def whole(self) -> AbstractContextManager[None]:
        """In this context, which all ranks enter, `model` has its weights."""
        return nullcontext()

    def collect_gradients(self) -> None:
        """Moves the gradients of 16-bit weights to their masters, where micro-batches add up in fp32."""
        self._collect([(own, master) for own, master in self._pairs() if own.dtype != master.dtype])

    def _pairs(self) -> list[tuple[nn.Parameter, Tensor]]:
        """The weights that are not stepped themselves, and what is stepped instead of them."""
        pairs = ((weight, self.tensors[name]) for name, weight in self._stored.items())
        return [(weight, master) for weight, master in pairs if master is not weight]

    def _collect(self, pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Adds the gradients of weights to those of their masters, on a card those of many at once."""
        pairs = [(weight, master) for weight, master in pairs if weight.grad is not None]
        if self._staging is not None:
            for weight, master in pairs:
                adds = master.grad is not None
                if master.grad is None:
                    master.grad = torch.empty_like(master, requires_grad=False)
                self._staging.down(master.grad, cast(Tensor, weight.grad), adds=adds)
                weight.grad = None
            return
        most = 0 if self.module.device.type == "cpu" else card_batch(master for _, master in pairs)
        for batch in in_batches(pairs, most):
            _move_gradients(batch)

    def discard_gradients(self) -> None:
        """Sets all gradients to None, of masters and of the model."""
        for tensor in (*self._stored.values(), *self.tensors.values()):
            tensor.grad = None

    def gradient(self) -> Tensor:
        """All gradients as one vector; zeros for tensors without one."""
        self._collect(self._pairs())
        weights = self.tensors.values()
        parts = [(torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in weights]
        return torch.cat(parts)

    def clip_gradients(self, max_norm: float) -> float:
        """Scales the gradients down to a global 2-norm of at most `max_norm`. Returns the norm before."""
        self._collect(self._pairs())
        return torch.nn.utils.clip_grad_norm_(self.tensors.values(), max_norm).item()

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the masters to the model, in its dtype."""
        pairs = self._pairs()
        if self._staging is not None:
            for weight, master in pairs:
                self._staging.up(weight, master)
        elif pairs:
            torch.ops.aten._foreach_copy_([weight for weight, _ in pairs], [master for _, master in pairs])

    @property
    def state_bytes(self) -> int:
        """The size of `state_dict`."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of an optimiser of `tensors`, unsharded."""
        return state

    def shard_state(self, state: Mapping[str, Any], stepped: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Any]:
        """The inverse of `gather_state`; `stepped` are the optimiser's tensors by part, in the order of its state's
        indices."""
        return state

    def state_dict(self) -> dict[str, Tensor]:
        """The masters of 16-bit weights; fp32 weights are complete in the model's own files."""
        return {
            name: tensor.detach() for name, tensor in self.tensors.items() if tensor.dtype != self._stored[name].dtype
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores saved masters and copies them to the model; other masters are read from the model again."""
        saved = self.state_dict()
        for name, weight in self._stored.items():
            self.tensors[name].copy_(state[name] if name in saved else weight)
        self.publish()


def _move_gradients(batch: Sequence[tuple[Tensor, ...]]) -> None:
    """Moves the gradients of weights to their masters, (weight, master) each, or adds them there."""
    gradients = [torch.empty_like(master, requires_grad=False) for _, master in batch]
    torch.ops.aten._foreach_copy_(gradients, [weight.grad for weight, _ in batch])
    sums: list[Tensor] = []
    added: list[Tensor] = []
    for (weight, master), gradient in zip(batch, gradients, strict=True):
        weight.grad = None
        if master.grad is None:
            master.grad = gradient
        else:
            sums.append(master.grad)
            added.append(gradient)
    if sums:
        torch.ops.aten._foreach_add_.List(sums, added)


class _Staging:
    """Copies between a card and the host piece by piece through one buffer, pinned beside a GPU, so that neither side
    needs memory for more than `PIECE` elements. Values are converted on the host."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._buffers: dict[torch.dtype, Tensor] = {}

    def down(self, target: Tensor, source: Tensor, *, adds: bool = False) -> None:
        """Copies `source`, on the card, to `target`, or adds it there."""
        for here, there in _pieces(target, source):
            piece = self._buffer(there).copy_(there)
            _ = here.add_(piece) if adds else here.copy_(piece)

    def up(self, target: Tensor, source: Tensor) -> None:
        """Copies `source` to `target`, on the card."""
        for there, here in _pieces(target, source):
            there.copy_(self._buffer(there).copy_(here))

    def _buffer(self, like: Tensor) -> Tensor:
        """(n,) in the dtype of `like` (n,)."""
        if like.dtype not in self._buffers:
            self._buffers[like.dtype] = torch.empty(PIECE, dtype=like.dtype, pin_memory=self._pinned)
        return self._buffers[like.dtype][: len(like)]


def _pieces(target: Tensor, source: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Flat views of both, piece by piece; `target` is contiguous."""
    return zip(target.detach().view(-1).split(PIECE), source.detach().reshape(-1).split(PIECE), strict=True)


class WeightSource:
    """The weights of a model that this process holds whole. `sleuth.learn.shards` has the source of one in shards."""

    gathers = False
    """Whether ranks must gather the weights, which they do in `together` only."""
    one_pass: AbstractContextManager[object] = nullcontext()
    """What a thread enters that sends all buckets to a server."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.ranks = ranks

    @property
    def at_hand(self) -> bool:
        """Whether this process can read the weights now."""
        return True

    def together(self, work: Callable[[], Result]) -> Result:
        """Runs `work` on rank 0, which may read the weights in it; every rank calls this and returns the result, or
        raises the error."""
        return self.ranks.broadcast(work)

    def outline(self) -> dict[str, Tensor]:
        """Tensors of the names, shapes and dtypes of all weights, in the order of `buckets`."""
        return base_state(self.model)

    def buckets(self, *, merged: bool = True) -> Iterator[dict[str, Tensor]]:
        """All weights by name, adapters merged or left out; of tied ones each name. A bucket is emptied when the next
        one is asked for."""
        yield merged_state(self.model) if merged else base_state(self.model)

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> list[float]:
        """The learner's log-probabilities of the tokens of `completion` after `prompt`."""
        return learner_logprobs(self.model, prompt, completion, temperature)


@torch.no_grad()
def learner_logprobs(
    model: PreTrainedModel,
    prompt: Sequence[int],
    completion: Sequence[int],
    temperature: float,
    device: torch.device | None = None,
) -> list[float]:
    """The model's log-probabilities of the tokens of `completion` after `prompt`, computed on its device, or this."""
    training = model.training
    model.eval()
    try:
        tokens = torch.tensor([[*prompt, *completion]], device=device or model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        logprobs = (logits / temperature).log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
    finally:
        model.train(training)
    return logprobs[:, 0].tolist()


Holding = Callable[..., MasterWeights]
"""Model -> its `MasterWeights` or a subclass: whole, or sharded over ranks."""
