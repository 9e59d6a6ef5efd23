"""Several updates a step are the same on two ranks."""

from __future__ import annotations

import pytest
from run_files import bytes_of, figures, groups
from runs_on_ranks import run_on

from sleuth.runs.checkpoints import load_state

OVERRIDES = (
    "stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.prompts_per_step=2", "stage.1.samples_per_prompt=4",
    "stage.1.data.limit=4", "stage.1.steps=3",
    "stage.1.updates_per_batch=2", "stage.1.prompts_per_update=1",
)  # fmt: skip


@pytest.mark.slow
def test_two_ranks_update_several_times_as_one_process_and_go_on_where_they_stopped(run, recipe_file, tmp_path):
    alone = run(recipe_file, tmp_path / "alone", *OVERRIDES)
    ranks = run_on(2, recipe_file, tmp_path / "ranks", *OVERRIDES)
    assert load_state(ranks)["asked"] == load_state(alone)["asked"]
    names = [[group.task.id for group in groups(tmp_path / folder)] for folder in ("alone", "ranks")]
    assert names[0] == names[1]
    losses = [[row["loss"] for row in figures(tmp_path / folder)] for folder in ("alone", "ranks")]
    assert losses[0] == [None if loss is None else pytest.approx(loss, rel=1e-4) for loss in losses[1]]
    run_on(2, recipe_file, tmp_path / "parts", *OVERRIDES, "stage.1.stop_after=2")
    run_on(2, recipe_file, tmp_path / "parts", *OVERRIDES)
    of_ranks, of_parts = bytes_of(tmp_path / "ranks"), bytes_of(tmp_path / "parts")
    assert of_parts == {name: of_ranks[name] for name in of_parts}
