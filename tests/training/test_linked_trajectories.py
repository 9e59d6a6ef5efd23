"""Episodes that a chat template told anew, in training: one advantage, one weight, one record."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from written_groups import written

from sleuth.evaluation.evaluate import question_record
from sleuth.learn.batch import Batch, batch_of_groups
from sleuth.learn.losses import Normaliser, PolicyLoss
from sleuth.learn.models import random_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.recipe import InitRecipe
from sleuth.types import Action, Episode, Group, Passage, Score, Segment, Task, Trajectory
from sleuth.world.tokens import make_tokenizer

TASK = Task(id="q", question="?", golden_answers=("Tarn",))
FOUND = Action(kind="search", text="Ada", passages=(Passage(id="1", title="Ada", text="Tarn."),))
ASKED = Action(kind="search", text="Ada")
SAID = Action(kind="answer", text="Tarn")


def read(author: Literal["template", "env"], *tokens: int) -> Segment:
    return Segment(author=author, tokens=tokens, text=".")


BEFORE = Trajectory(segments=(read("template", 1, 2), written(3, 4, 5, 6)), actions=(ASKED,), stop="rewritten")
AFTER = Trajectory(
    segments=(read("template", 1, 2), read("env", 5, 6), read("template", 7), written(8, 9)), actions=(FOUND, SAID)
)
SHORT = Trajectory(segments=(read("template", 1, 2), written(9, 9, 3)), stop="turns")
LINKED = Episode(task=TASK, sample=0, trajectories=(BEFORE, AFTER))
WHOLE = Episode(task=TASK, sample=1, trajectories=(SHORT,))
GROUP = Group(task=TASK, episodes=(LINKED, WHOLE), scores=(Score(value=1.0), Score(value=0.0)))
ADVANTAGES = [[0.75, -0.5]]


def batch_of(normalise: Normaliser) -> Batch:
    return batch_of_groups([GROUP], ADVANTAGES, normalise=normalise, constant=10 if normalise == "constant" else None)


@pytest.mark.parametrize(
    ("normalise", "of_linked", "of_whole"),
    [("token", 6 / 9, 3 / 9), ("sequence", 1 / 2, 1 / 2), ("constant", 0.3, 0.15)],
)
def test_linked_trajectories_share_the_advantage_and_weigh_as_one_episode(normalise, of_linked, of_whole):
    batch = batch_of(normalise)
    assert [set(row[trained].tolist()) for row, trained in zip(batch.advantages, batch.trained, strict=True)] == [
        {0.75},
        {0.75},
        {-0.5},
    ]
    assert batch.weights[:2].sum().item() == pytest.approx(of_linked)
    assert batch.weights[2].sum().item() == pytest.approx(of_whole)
    assert len(set(batch.weights[:2][batch.trained[:2]].tolist())) == 1


def test_the_copy_of_a_turn_is_read_and_never_trained():
    batch = batch_of("token")
    assert batch.tokens[1, :7].tolist() == [1, 2, 5, 6, 7, 8, 9]
    assert batch.trained[1, :7].tolist() == [False, False, False, False, False, True, True]


def test_the_gradient_of_linked_trajectories_is_the_sum_of_both_under_their_weights():
    tokenizer = make_tokenizer(200)
    shape = InitRecipe(layers=1, width=16, heads=1, kv_heads=1, head_dim=16, mlp=16, context=64)
    policy = Policy(random_model(shape, tokenizer, seed=0), Optimisation(steps=1, learning_rate=1e-3))
    batch = batch_of("sequence")
    loss = PolicyLoss()
    whole, gradient = policy.gradient(batch, loss, budget=10_000)
    parts = [policy.gradient(batch.take([row]), loss, budget=10_000) for row in range(3)]
    assert whole == pytest.approx(sum(part for part, _ in parts), rel=1e-5)
    together = torch.stack([part for _, part in parts]).sum(dim=0)
    assert torch.allclose(gradient, together, rtol=1e-4, atol=1e-7)
    assert all(part.abs().max() > 0 for _, part in parts)


def test_the_record_of_a_question_holds_all_linked_trajectories_and_tells_its_actions_once():
    record = question_record(LINKED, GROUP.scores[0])
    authors = [segment["author"] for segment in record["segments"]]
    assert authors == ["template", "policy", "template", "env", "template", "policy"]
    assert [action["kind"] for action in record["actions"]] == ["search", "answer"]
    assert (record["searches"], record["stop"]) == (1, "answered")
