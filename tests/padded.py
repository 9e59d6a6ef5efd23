"""The plain way, which the prefix tree must equal: rows padded on the right, the model's own attention, all logits."""

from __future__ import annotations

import random

from torch import Tensor, nn

from sleuth.learn.batch import Batch, Row
from sleuth.learn.prefix_tree import Pack, prefix_tree


def whole(batch: Batch) -> Pack:
    """All rows in one pack, in their order."""
    return Pack(rows=batch, tree=prefix_tree(batch), members=tuple(range(len(batch.lengths))))


def padded_logprobs(model, batch: Batch, temperature: float = 1.0) -> Tensor:
    """(B, T): 0 where a token is not trained."""
    distribution = (model(batch.tokens).logits / temperature).log_softmax(dim=-1)
    chosen = distribution[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    return nn.functional.pad(chosen, (1, 0)) * batch.trained


def group_rows(draw: random.Random, *, groups: int, siblings: int, longest: int, letters: int = 40) -> list[Row]:
    """Rows as siblings are: a common prompt, then words from few letters, so that they part late and at any depth."""

    def row(prompt: list[int]) -> Row:
        written = [draw.randrange(2) for _ in range(draw.randint(0, longest))]
        return Row(
            tokens=(*prompt, *written),
            trained=(*[False] * len(prompt), *[draw.random() < 0.7 for _ in written]),
            advantage=draw.uniform(-2, 2),
            sampler_logprobs=tuple(-draw.uniform(0.5, 4.0) for _ in (*prompt, *written)),
        )

    prompts = [[draw.randrange(letters) for _ in range(draw.randint(1, longest))] for _ in range(groups)]
    rows = [row(prompt) for prompt in prompts for _ in range(draw.randint(1, siblings))]
    twin = draw.choice(rows)
    return [
        *rows,
        twin,
        Row(tokens=(*twin.tokens[:1], 1), trained=(False, True), advantage=1.0, sampler_logprobs=(0.0, -1.0)),
    ]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of each weight that has one."""
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def relative_error(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The distance of two gradients, of the length of the second."""
    assert ours.keys() == theirs.keys()
    difference = sum((ours[name] - theirs[name]).square().sum() for name in theirs) ** 0.5
    return float(difference / sum(gradient.square().sum() for gradient in theirs.values()) ** 0.5)
