"""Several updates on a batch take their time in a plan, and no memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_fit import RECIPE

from sleuth.host.hardware import CARDS, Cards
from sleuth.plan.fit import CardPlan, plan_for_cards
from sleuth.plan.memory import total
from sleuth.plan.phases import Phase
from sleuth.plan.shapes import PUBLISHED
from sleuth.recipe import load_recipe

WITHOUT_EVALUATION = RECIPE.replace(RECIPE[RECIPE.index("[[stage]]") : RECIPE.rindex("[[stage]]")], "")
WITHOUT_EVALUATION = WITHOUT_EVALUATION.replace("tokens_per_micro_batch = 8192\n", "")


def planned(folder: Path, *overrides: str, card: str = "h100-80", count: int = 1) -> CardPlan:
    (folder / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-0.6B"]))
    (folder / "planned.toml").write_text(WITHOUT_EVALUATION.format(model=folder))
    recipe = load_recipe(folder / "planned.toml", overrides)
    return plan_for_cards(recipe, Cards(card=CARDS[card], count=count))


def test_passes_multiply_the_update_and_minibatches_only_the_step_of_the_weights(tmp_path: Path) -> None:
    twice = "stage.0.updates_per_batch=2"
    plans = [planned(tmp_path, *more) for more in ((), (twice,), (twice, "stage.0.prompts_per_update=6"))]
    seconds = [plan.stages[0].step_seconds for plan in plans]
    for name in ("update", "reference pass"):
        assert seconds[1][name] == pytest.approx(2 * seconds[0][name])
    assert seconds[0]["rollout"] == seconds[1]["rollout"] == seconds[2]["rollout"]
    four_steps = seconds[2]["update"] - seconds[1]["update"]  # 2 passes of 3 minibatches, not of one
    assert 0 < four_steps < seconds[0]["update"]
    assert seconds[2]["reference pass"] == seconds[1]["reference pass"]
    assert len({plan.peak_memory_bytes for plan in plans}) == 1


TOKENS = "stage.0.tokens_per_micro_batch=32768"
RECOMPUTED = "stage.0.gradient_checkpointing=true"


def update_of(plan: CardPlan) -> Phase:
    return next(phase for phase in plan.phases if phase.name == "update")


@pytest.mark.parametrize(("card", "layers"), [("rtx-4090", range(1, 28)), ("a100-40", range(1, 28)), ("h100-80", [0])])
def test_layers_that_have_no_room_are_computed_again_and_the_others_keep_what_fits(
    tmp_path: Path, card, layers
) -> None:
    all_again = planned(tmp_path, TOKENS, RECOMPUTED, card=card, count=2)
    ours = planned(tmp_path, TOKENS, RECOMPUTED, card=card)
    none = planned(tmp_path, TOKENS, card=card)
    update = update_of(ours)
    assert update.recomputed in layers
    assert ours.fits
    assert update.needed < 24e9
    assert update.needed < total(update.bytes) <= min(ours.memory, total(update_of(none).bytes))
    assert (update_of(all_again).recomputed, update_of(none).recomputed) == (28, 0)
    seconds = [plan.stages[0].step_seconds["update"] * plan.ranks for plan in (none, ours, all_again)]
    assert seconds[0] <= seconds[1] < seconds[2]
    assert (seconds[0] == seconds[1]) == (update.recomputed == 0)
