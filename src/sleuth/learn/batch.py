"""The batch of one optimiser step: its rows as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from sleuth.kernels.device import sent
from sleuth.learn.losses import Normaliser, token_weights
from sleuth.types import Credit, Episode, Group, Score, Trajectory

NUMPY = {torch.bool: np.bool_, torch.int64: np.int64, torch.float32: np.float32}

Advantages = Sequence[Sequence[float | None]]
"""By group and episode; None where an episode is left out of the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory, or one text, for the loss: T token ids, which of them are trained, and its advantage.

    `sampler_logprobs` has T values, read only where a token is trained; None if the engine gave none. `token_weight`
    has T numbers: the relative weight of each trained token; None is 1 for all. `credit` has T numbers that are added
    to the advantage, token by token; None is 0 for all. `guidance` is the weight with which its trained tokens follow a
    teacher. Rows with the same `episode_id` are
    linked trajectories of one episode, and a loss that counts rows counts them as one; None is an episode by itself.
    `sources` are T places in the row: of the token that each token copies, -1 where it copies none.
    `Row(tokens=(7, 5, 9), trained=(False, True, True), advantage=0.5, sampler_logprobs=(0.0, -0.1, -1.2))`.
    """

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    advantage: float = 0.0
    sampler_logprobs: tuple[float, ...] | None = None
    token_weight: tuple[float, ...] | None = None
    credit: tuple[float, ...] | None = None
    guidance: float = 0.0
    episode_id: int | None = None
    sources: tuple[int, ...] | None = None


def trajectory_row(
    trajectory: Trajectory,
    advantage: float,
    episode_id: int | None = None,
    credits: Sequence[Credit] = (),
    guidance: float = 0.0,
) -> Row:
    """What the policy wrote is trained; prompts, retrieved text, inserted tags and copied turns are not. `credits` are
    added to the advantage of the tokens that they cover."""
    trained: list[bool] = []
    logprobs: list[float] = []
    complete = True
    for segment in trajectory.segments:
        written = segment.author == "policy"
        complete &= not written or segment.logprobs is not None
        trained += [written] * len(segment.tokens)
        logprobs += segment.logprobs if written and segment.logprobs else [0.0] * len(segment.tokens)
    return Row(
        tokens=trajectory.tokens,
        trained=tuple(trained),
        advantage=advantage,
        sampler_logprobs=tuple(logprobs) if complete else None,
        credit=tuple(_credit_by_token(trajectory, credits)) if credits else None,
        guidance=guidance,
        episode_id=episode_id,
    )


def _credit_by_token(trajectory: Trajectory, credits: Sequence[Credit]) -> Iterator[float]:
    """For each token the sum of the credits that cover it."""
    for at, segment in enumerate(trajectory.segments):
        values = [0.0] * len(segment.tokens)
        for credit in credits:
            for token in range(len(values))[credit.begin : credit.end] if credit.segment == at else ():
                values[token] += credit.value
        yield from values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Top:
    """The k likeliest `tokens` to a teacher in the place of each token, their `logprobs` under it and, where a loss is
    computed, those `of_policy`; (B, T, k) each."""

    tokens: Tensor  # int64
    logprobs: Tensor  # fp32
    of_policy: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Top:
        """The same of other tensors."""
        return Top(tokens=change(self.tokens), logprobs=change(self.logprobs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """B rows padded on the right to T tokens. Everything but `lengths` is (B, T); index t speaks of token t.

    `weights` are the shares of the whole step's loss (see `token_weights`), 0 where not `trained`; a part of a batch
    keeps the weights it had in the whole. `guidance` is None if no row follows a teacher, whose
    `teacher_logprobs` and, if the loss asks for it, `teacher_top` are added pass by pass.
    """

    tokens: Tensor  # int64, 0 in the padding
    lengths: Tensor  # (B,) int64
    trained: Tensor  # bool
    advantages: Tensor  # fp32, 0 where not trained
    weights: Tensor  # fp32
    sampler_logprobs: Tensor | None  # fp32, 0 where not trained
    guidance: Tensor | None = None  # fp32, 0 where not trained
    teacher_logprobs: Tensor | None = None  # fp32
    teacher_top: Top | None = None
    sources: Tensor | None = None  # int64: the place in the row of the token that is copied, -1 without one

    def take(self, rows: Sequence[int]) -> Batch:
        """The given rows, in the given order, without the padding that only longer rows needed."""
        index = torch.tensor(rows)
        longest = int(self.lengths[index].max())
        return self._map(lambda tensor: tensor[index, :longest] if tensor.dim() > 1 else tensor[index])

    def with_advantage(self) -> Batch:
        """The rows with an advantage other than 0 or guidance, or all rows if there is none."""
        strength = self.advantages if self.guidance is None else self.advantages.abs() + self.guidance
        rows = strength.count_nonzero(dim=1).nonzero().flatten().tolist()
        return self.take(rows) if rows else self

    def tokens_at(self, places: Tensor) -> Batch:
        """Single tokens as one row: `places` (n,) are indices into the concatenated rows."""
        of_tokens = self._map(lambda tensor: tensor.flatten(0, 1)[places][None] if tensor.dim() > 1 else tensor)
        return replace(of_tokens, lengths=self.lengths.new_full((1,), len(places)))

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: sent(tensor, device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {
            name: value.map(change) if isinstance(value, Top) else change(value)
            for name, value in values.items()
            if value is not None
        }
        return replace(self, **changed)

    @property
    def tokens_trained(self) -> int:
        """How many tokens carry weight."""
        return int(self.trained.sum())

    @property
    def tokens_dense(self) -> int:
        """How many tokens the rows hold: what one pass over each by itself would compute."""
        return int(self.lengths.sum())


def collate(rows: Sequence[Row], *, normalise: Normaliser = "token", constant: int | None = None) -> Batch:
    """The rows of one optimiser step as a batch, with the weights of all its tokens.

    The first token of a row is never trained: nothing predicts it. The sampler's log-probabilities are kept if every
    row has them. Raises ValueError if no token is trained.
    """
    trained = _pad([row.trained for row in rows], torch.bool)
    trained[:, 0] = False
    token_weight = trained.float()
    if any(row.token_weight for row in rows):
        token_weight = _pad([row.token_weight or (1.0,) * len(row.tokens) for row in rows], torch.float32)
    advantages = torch.tensor([[row.advantage] for row in rows], dtype=torch.float32)
    if any(row.credit for row in rows):
        advantages = advantages + _pad([row.credit or (0.0,) * len(row.tokens) for row in rows], torch.float32)
    sampler = [row.sampler_logprobs for row in rows if row.sampler_logprobs is not None]
    guidance = torch.tensor([[row.guidance] for row in rows], dtype=torch.float32)
    return Batch(
        tokens=_pad([row.tokens for row in rows], torch.int64),
        lengths=torch.tensor([len(row.tokens) for row in rows]),
        trained=trained,
        advantages=advantages * trained,
        weights=token_weights(trained * token_weight, normalise, constant=constant, episode_ids=_episode_ids(rows)),
        sampler_logprobs=_pad(sampler, torch.float32) * trained if len(sampler) == len(rows) else None,
        guidance=guidance * trained if guidance.any() else None,
        sources=_sources(rows),
    )


def _sources(rows: Sequence[Row]) -> Tensor | None:
    """(B, T) int64; None if no row has them."""
    if all(row.sources is None for row in rows):
        return None
    return _pad([row.sources or (-1,) * len(row.tokens) for row in rows], torch.int64, padding=-1)


def batch_of_groups(
    groups: Sequence[Group],
    advantages: Advantages,
    *,
    normalise: Normaliser,
    constant: int | None = None,
    guidance: Callable[[Score], float] = lambda score: 0.0,
) -> Batch:
    """The trajectories of all episodes that have an advantage. Linked trajectories of one episode share its advantage
    and the `guidance` of its score, and count as one row; the credits of its score apply to the last of
    them."""
    rows = [
        trajectory_row(
            trajectory,
            advantage,
            episode_id,
            credits=score.credits if trajectory is episode.trajectory else (),
            guidance=guidance(score),
        )
        for episode_id, (episode, score, advantage) in enumerate(in_loss(groups, advantages))
        for trajectory in episode.trajectories
    ]
    return collate(rows, normalise=normalise, constant=constant)


def has_gradient(
    groups: Sequence[Group], advantages: Advantages, guidance: Callable[[Score], float] = lambda score: 0.0
) -> bool:
    """Whether any advantage, credit or guidance is nonzero."""
    return any(
        advantage or guidance(score) or any(credit.value for credit in score.credits)
        for _, score, advantage in in_loss(groups, advantages)
    )


def in_loss(groups: Sequence[Group], advantages: Advantages) -> Iterator[tuple[Episode, Score, float]]:
    """The episodes that have an advantage."""
    for group, of_group in zip(groups, advantages, strict=True):
        for episode, score, advantage in zip(group.episodes, group.scores, of_group, strict=True):
            if advantage is not None:
                yield episode, score, advantage


def _episode_ids(rows: Sequence[Row]) -> Tensor | None:
    """(B,) int64, the number of each row's episode among those of the step; None where each row is its own."""
    names = [("row", at) if row.episode_id is None else row.episode_id for at, row in enumerate(rows)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return None if len(numbers) == len(rows) else torch.tensor([numbers[name] for name in names])


def _pad(values: Sequence[Sequence[float]], dtype: torch.dtype, padding: float = 0) -> Tensor:
    padded = np.full((len(values), max(map(len, values))), padding, dtype=NUMPY[dtype])
    for row, own in zip(padded, values, strict=True):
        row[: len(own)] = own
    return torch.from_numpy(padded)
