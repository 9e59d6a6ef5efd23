"""Updates that fit the memory there is, in one process and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sleuth.host.disk import Shortages
from sleuth.learn.batch import collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import MIN_BUDGET, Policy, TokenBudget, frozen_copy
from sleuth.ranks import Ranks
from sleuth.types import SleuthError, TransientError


def short_of(most: int) -> Callable[[int], int]:
    """An update that has room for so many tokens at once."""

    def update(tokens: int) -> int:
        if tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    return update


def test_one_process_halves_the_budget_until_it_fits_and_stores_nothing() -> None:
    said: list[str] = []
    noted: list[int] = []
    budget = TokenBudget(4_096, said.append, note=noted.append)
    assert budget.run(short_of(1_500)) == 1_024
    assert (len(said), noted) == (2, [])


def test_on_ranks_the_failed_budget_is_stored_and_the_run_ends(tmp_path: Path) -> None:
    shortages = Shortages(tmp_path / "out_of_memory")
    for tokens in (4_096, 2_048):
        assert shortages.fitting("grpo", 4_096) == tokens
        budget = TokenBudget(tokens, print, Ranks(rank=5, world=8), lambda count: shortages.note("grpo", count))
        with pytest.raises(
            TransientError, match=rf"on rank 5 of 8 with {tokens} tokens at once.* with {tokens // 2} tok"
        ):
            budget.run(short_of(1_500))
    assert shortages.fitting("grpo", 4_096) == 1_024
    assert shortages.fitting("grpo", 512) == 512, "fewer than did not fit are left as they are"
    assert shortages.fitting("supervised", 4_096) == 4_096, "each stage has its own"


def test_below_the_minimum_budget_nothing_is_stored_and_no_restart_helps() -> None:
    noted: list[int] = []
    budget = TokenBudget(2 * MIN_BUDGET - 1, print, Ranks(rank=0, world=2), noted.append)
    with pytest.raises(SleuthError, match="with more ranks") as caught:
        budget.run(short_of(1))
    assert not isinstance(caught.value, TransientError)
    assert noted == []


def test_other_errors_are_raised_unchanged() -> None:
    def fail(tokens: int) -> None:
        raise RuntimeError("another thing")

    with pytest.raises(RuntimeError, match="another thing"):
        TokenBudget(4_096, print, Ranks(rank=0, world=2)).run(fail)


@pytest.mark.parametrize("of_reference", [False, True])
def test_an_update_short_of_memory_is_the_update_with_the_budget_that_fits(
    make_model, make_rows, short_of_memory, of_reference
) -> None:
    """Out of memory in the policy's pass or in its reference's: losses and weights are those of an update that had the
    smaller budget from the start, and later updates begin with it."""

    def policy() -> Policy:
        reference = frozen_copy(make_model(seed=1))
        if of_reference:  # Only its layers have no room.
            reference.get_input_embeddings().register_forward_pre_hook(refuse)
        return Policy(make_model(), Optimisation(steps=9, learning_rate=1e-3), reference)

    seen: list[int] = []

    def refuse(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].numel())
        if seen[-1] > 300:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    batch, loss, said = collate(make_rows(90)), PolicyLoss(beta=0.1), list[str]()
    budget, ours, theirs = TokenBudget(1_024, said.append), policy(), policy()
    scarce = nullcontext([]) if of_reference else short_of_memory(300)
    with scarce as refused:
        found = [budget.run(lambda tokens: ours.update(batch, loss, budget=tokens)) for _ in range(2)]
    assert budget.tokens == 256
    assert said == [f"out of memory: retrying with {tokens} tokens at once, and going on so" for tokens in (512, 256)]
    assert len([tokens for tokens in seen if tokens > 300] if of_reference else refused) == 2, "the second is not tried"
    assert found == [theirs.update(batch, loss, budget=256) for _ in range(2)]
    for name, weight in theirs.model.named_parameters():
        assert torch.equal(ours.model.get_parameter(name), weight), name


def test_an_optimiser_short_of_memory_ends_the_run_since_some_weights_may_be_stepped(make_model, make_rows) -> None:
    policy = Policy(make_model(), Optimisation(steps=9, learning_rate=1e-3, name="muon"))

    def refuse(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    policy.optimiser.parts["muon"].register_step_pre_hook(refuse)
    budget = TokenBudget(1_024, print)
    with pytest.raises(SleuthError, match=r"out of memory in step 1 of the optimiser.*cpu_offload = true"):
        budget.run(lambda tokens: policy.update(collate(make_rows(5)), PolicyLoss(), budget=tokens))
    assert budget.tokens == 1_024
