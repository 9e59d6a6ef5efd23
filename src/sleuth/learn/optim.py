"""The optimiser of a policy: AdamW, or Muon for the hidden matrices with AdamW for the rest, under one schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import _muon
from transformers import PreTrainedModel

OptimiserName = Literal["adamw", "muon"]
ParameterRole = Literal["matrix", "head", "embedding", "vector"]

CHUNK = 2**18
"""Elements per AdamW call on a CPU, few enough that weights, gradients and moments stay in the cache."""
CARD_BATCH = 2**24
"""The same on a card where no weight has more, few enough that the copies to compare with take little memory."""
RESOLUTION_SAMPLE = 1_000_000
"""Weights of `UpdateResolution`, taken at a constant stride over the whole model."""
INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the integer type to compare bits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """Optimiser settings: `Optimisation(steps=200, learning_rate=1e-6, warmup_steps=10)`.

    `steps` is the schedule's horizon including `warmup_steps`. `weight_decay` is decoupled and not applied to
    embeddings, norms and biases. Gradients are clipped to a global 2-norm of `max_grad_norm`. Input embeddings have a
    peak rate of their own, `embedding_learning_rate`, if it is given.
    """

    steps: int
    learning_rate: float
    embedding_learning_rate: float | None = None
    name: OptimiserName = "adamw"
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


def scheduled_learning_rate(step: int, settings: Optimisation) -> float:
    """The learning rate of step `step` (from 0): a linear warm-up, then constant, or a half cosine to zero."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.learning_rate * (1 + math.cos(math.pi * min(1.0, progress))) / 2


class UpdateResolution:
    """The distribution, over a sample of a model's weights, of the smallest update that changes the stored value.

    Between 2^e and 2^(e + 1), floats of p bits of precision are 2^(e + 1 - p) apart, and a change of less than half of
    that is rounded away: in bfloat16 (p = 8) between |w| / 512 and |w| / 256.
    """

    def __init__(self, model: nn.Module) -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        stride = max(1, sum(weight.numel() for weight in weights) // RESOLUTION_SAMPLE)
        sample = torch.cat([half_spacing(weight.detach().flatten()[::stride]) for weight in weights])
        self.thresholds = sample.sort().values  # (n,) fp32

    def share(self, distance: float) -> float:
        """The share of weights that an update of size `distance` changes."""
        return int(torch.searchsorted(self.thresholds, distance)) / len(self.thresholds)

    def distance(self, share: float) -> float:
        """The size of the update that changes this share of the weights."""
        return float(self.thresholds[min(len(self.thresholds) - 1, int(share * len(self.thresholds)))])


def half_spacing(weights: Tensor) -> Tensor:
    """The smallest change that rounds each weight to another value of its dtype; fp32, in the shape of `weights`."""
    limits = torch.finfo(weights.dtype)
    _, exponents = torch.frexp(weights.float().abs().clamp(min=limits.smallest_normal))  # below it, spacing is constant
    return torch.exp2((exponents - 1).float()) * (limits.eps / 2)  # 2^(exponent - 1) <= |w| < 2^exponent


def path_length(settings: Optimisation, steps: int) -> float:
    """Approximate maximum change of a weight in `steps` steps, if all have the same sign: the sum of the learning
    rates, since AdamW normalises gradients and Muon's update is scaled to the same."""
    return sum(scheduled_learning_rate(step, settings) for step in range(steps))


def parameter_roles(model: PreTrainedModel) -> dict[str, ParameterRole]:
    """Parameter name -> role: hidden matrix, output head, embedding, or vector (norms and biases). A head tied to the
    embedding is an embedding."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = id(cast(nn.Linear, model.get_output_embeddings()).weight)

    def role(parameter: nn.Parameter) -> ParameterRole:
        if id(parameter) in embeddings:
            return "embedding"
        if id(parameter) == head:
            return "head"
        return "vector" if parameter.dim() < 2 else "matrix"

    return {name: role(parameter) for name, parameter in model.named_parameters()}


HAS_BF16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)()
"""Whether oneDNN multiplies bfloat16 numbers on this CPU. Without it, on a processor with AVX2, Muon's products took
thirty times as long as in fp32."""


class Muon(torch.optim.Muon):
    """torch's Muon (arXiv:2502.16982), which orthogonalises updates in bfloat16; here in fp32 on a CPU without bfloat16
    products."""

    def step(self, closure: Any = None) -> Any:
        on_cpu = all(weight.device.type == "cpu" for group in self.param_groups for weight in group["params"])
        if HAS_BF16 or not on_cpu:
            return super().step(closure)
        usual = _muon._zeropower_via_newtonschulz
        _muon._zeropower_via_newtonschulz = orthogonal
        try:
            return super().step(closure)
        finally:
            _muon._zeropower_via_newtonschulz = usual


def orthogonal(gradient: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The Newton-Schulz iteration of Muon in the dtype of `gradient` (m, n): moves its singular values to about 1.

    X <- aX + (bA + cA^2) X with A = X X^T, from X of Frobenius norm 1, `steps` times.
    """
    a, b, c = coefficients
    wide = gradient if gradient.shape[0] <= gradient.shape[1] else gradient.T
    x = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is gradient else x.T


class Optimiser:
    """One or two torch optimisers stepped together, with the learning rate of the schedule.

    `weights` maps parameter names of `model` to the fp32 tensors to step (`MasterWeights.tensors`); for sharded
    tensors, only this rank's part is stepped and counted. Muon (arXiv:2502.16982) steps the 2-D hidden matrices; its
    update is scaled to the size of AdamW's, so that one learning rate and one weight decay fit both.
    """

    def __init__(self, model: PreTrainedModel, weights: Mapping[str, Tensor], settings: Optimisation) -> None:
        self.settings = settings
        self.steps = 0
        self._stored = {weights[name]: weight.dtype for name, weight in model.named_parameters() if name in weights}
        roles = parameter_roles(model)
        by_muon = {
            name for name in weights if settings.name == "muon" and _is_hidden_matrix(roles[name], weights[name])
        }
        adamw = {name: tensor for name, tensor in weights.items() if name not in by_muon}
        decayed = [tensor for name, tensor in adamw.items() if roles[name] in ("matrix", "head")]
        others = [tensor for name, tensor in adamw.items() if roles[name] in ("embedding", "vector")]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        if settings.embedding_learning_rate is not None:
            embeddings = [tensor for name, tensor in adamw.items() if roles[name] == "embedding"]
            groups[1]["params"] = [tensor for name, tensor in adamw.items() if roles[name] == "vector"]
            relative = settings.embedding_learning_rate / settings.learning_rate
            groups.append({"params": embeddings, "weight_decay": 0.0, "relative_rate": relative})
        groups = [group for group in groups if group["params"]]
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if groups:  # adapters are all matrices: Muon may step every one
            self.parts["adamw"] = torch.optim.AdamW(groups, betas=settings.betas)
        if by_muon:
            self.parts["muon"] = Muon(
                [weights[name] for name in weights if name in by_muon],
                weight_decay=settings.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return scheduled_learning_rate(self.steps, self.settings)

    @property
    def stepped(self) -> dict[str, list[Tensor]]:
        """The tensors of each part, in the order of its state's indices."""
        return {
            name: [tensor for group in part.param_groups for tensor in group["params"]]
            for name, part in self.parts.items()
        }

    @torch.no_grad()
    def step(self, *, ends_step: bool = True) -> int:
        """Steps every weight that has a gradient. Returns how many elements changed in the model's dtype. The schedule
        goes on if this is the last update of a step (`ends_step`)."""
        changed = 0
        for name, part in self.parts.items():
            for group in part.param_groups:
                group["lr"] = self.learning_rate * group.get("relative_rate", 1.0)
            changed += self._step_adamw(part) if name == "adamw" else self._step_whole(part)
        self.steps += ends_step
        return changed

    def _step_adamw(self, part: torch.optim.Optimizer) -> int:
        """AdamW by torch's fused kernel, on as many weights at once as fit in a batch, so that no temporary array is
        larger than the largest weight, nor than a chunk on a CPU. The state has the layout of `torch.optim.AdamW`."""
        changed: int | Tensor = 0
        stepped = [weight for group in part.param_groups for weight in group["params"]]
        most = CHUNK if stepped[0].device.type == "cpu" else card_batch(stepped)
        for group in part.param_groups:
            by_dtype: dict[torch.dtype, list[tuple[Tensor, ...]]] = {}
            steps: list[Tensor] = []
            for weight in group["params"]:
                if weight.grad is not None:
                    state = _state_of(part, weight)
                    tensors = weight, weight.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"]
                    pieces = ((*piece, state["step"]) for piece in _chunks(most, *tensors))
                    by_dtype.setdefault(self._stored[weight], []).extend(pieces)
                    steps.append(state["step"])
            if steps:
                torch.ops.aten._foreach_add_.Scalar(steps, 1)
            for dtype, pieces in by_dtype.items():
                changed = sum((_step_batch(batch, group, dtype) for batch in in_batches(pieces, most)), changed)
        return int(changed.item()) if isinstance(changed, Tensor) else changed

    def _step_whole(self, part: torch.optim.Optimizer) -> int:
        weights = [weight for group in part.param_groups for weight in group["params"]]
        before = [_local(weight).to(self._stored[weight], copy=True) for weight in weights]
        part.step()
        return int(sum(_count_changed(old, _local(weight)) for old, weight in zip(before, weights, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and the moments; tensors are not copied."""
        return {"steps": self.steps, "parts": {name: part.state_dict() for name, part in self.parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.steps = state["steps"]


def _is_hidden_matrix(role: ParameterRole, weight: Tensor) -> bool:
    return role == "matrix" and weight.dim() == 2


def _local(tensor: Tensor) -> Tensor:
    """The tensor, detached; for a sharded one (DTensor), this rank's part."""
    to_local = getattr(tensor, "to_local", None)
    return (tensor if to_local is None else to_local()).detach()


def _state_of(part: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """The state of a weight, its count of steps where it is stepped."""
    state = part.state[weight]
    if not state:
        state["step"] = torch.zeros((), device=weight.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    state["step"] = state["step"].to(weight.device)
    return state


def _chunks(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat views of tensors of one shape, chunk by chunk."""
    return zip(*(_local(tensor).view(-1).split(size) for tensor in tensors), strict=True)


def card_batch(tensors: Iterable[Tensor]) -> int:
    """Elements that a card computes at once: those of the largest tensor, or `CARD_BATCH`."""
    return max([CARD_BATCH, *(_local(tensor).numel() for tensor in tensors)])


Tensors = TypeVar("Tensors", bound=tuple[Any, ...])


def in_batches(items: Iterable[Tensors], most: int) -> Iterator[list[Tensors]]:
    """Consecutive items, as many as have `most` elements in their first tensors, or one that has more."""
    batch, held = [], 0
    for item in items:
        if batch and held + item[0].numel() > most:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += item[0].numel()
    if batch:
        yield batch


def _step_batch(pieces: list[tuple[Tensor, ...]], group: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """Steps flat weights by their gradients, moments and counts of steps. The number of elements that changed in
    `dtype`."""
    weights, gradients, means, squares, steps = map(list, zip(*pieces, strict=True))
    before = _copied(weights, dtype)
    torch.ops.aten._fused_adamw_(
        weights, gradients, means, squares, [], steps,
        lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1], eps=group["eps"],
        weight_decay=group["weight_decay"], amsgrad=False, maximize=False,
    )  # fmt: skip
    return _count_changed(before, _copied(weights, dtype))


def _copied(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """A copy of flat tensors, one after another."""
    sizes = [*map(len, tensors)]
    copy = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device)
    torch.ops.aten._foreach_copy_([*copy.split(sizes)], tensors)
    return copy


def _count_changed(before: Tensor, after: Tensor) -> Tensor:
    """The number of elements that differ in bits, in the dtype of `before`, which is overwritten."""
    bits = INTEGER_OF_SIZE[before.element_size()]
    return before.view(bits).sub_(after.to(before.dtype).view(bits)).count_nonzero()
