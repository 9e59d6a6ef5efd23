from __future__ import annotations

import re
from pathlib import Path

from refusals import line_of

from sleuth.recipe import load_recipe
from sleuth.recipe.sweep import load_sweep, own_stages, shared_stage_count

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
ARMS = TINY / "thinking_sweep.toml"
HEAD = f"""
name = "two"
model = "m"
seeds = [3, 4]

[table]
evaluation = "thoughts_after"
figures = ["gain_sampled"]

[[arm]]
name = "untouched"
stages = ["{TINY}/thinking_gain.toml:thoughts_after"]
"""


def message(file: Path, *overrides: str) -> str:
    return line_of(load_sweep, file, overrides)


def written(folder: Path, text: str) -> Path:
    file = folder / "two_arms.toml"
    file.write_text(text)
    return file


def test_an_arm_takes_its_stages_from_the_recipes_it_names() -> None:
    recipe, runs = load_sweep(ARMS)
    assert recipe.seeds == (0, 1, 2)
    assert [stage.name for stage in runs["improved_paid"].stage] == [
        "pretraining",
        "online_dpo",
        "thinking",
        "gain",
        "thoughts_after",
    ]
    assert runs["paid"].stage[2] == load_recipe(TINY / "thinking_gain.toml").stage[2]
    assert (runs["paid"].model, runs["paid"].seed) == ("models/tiny-reader", 0)


def test_arms_share_their_leading_stages_up_to_the_first_difference() -> None:
    _, runs = load_sweep(ARMS)
    assert shared_stage_count(runs["shown"], runs["paid"]) == 2
    assert shared_stage_count(runs["paid"], runs["improved_paid"]) == 1  # the stages after it start from other weights
    assert shared_stage_count(runs["paid"], runs["paid_short"]) == 2
    assert shared_stage_count(runs["paid"], runs["paid"]) == 3  # an evaluation has no checkpoint to reuse
    assert shared_stage_count(runs["paid"], runs["paid"].model_copy(update={"seed": 1})) == 0
    assert shared_stage_count(runs["paid"], runs["paid"].model_copy(update={"model": "other"})) == 0


def test_an_override_of_a_stage_changes_every_arm_that_has_it() -> None:
    _, runs = load_sweep(ARMS, ["thinking.steps=40", "name=other", "gain.reward.0.clip=3.0"])
    assert {stage.steps for run in runs.values() for stage in run.stage if stage.name == "thinking"} == {40}
    clips = {
        name: stage.reward[0].clip
        for name in ("paid", "shuffled")
        for stage in runs[name].stage
        if stage.name == "gain"
    }
    assert clips == {"paid": 3.0, "shuffled": 3.0}
    assert runs["paid"].resolved_from.set == ("thinking.steps=40", "gain.reward.0.clip=3.0")


def test_an_error_names_the_file_and_the_arm(tmp_path: Path) -> None:
    more = '[[arm]]\nname = "other"\nstages = ["{}"]\n'
    gain = f"{TINY}/thinking_gain.toml"
    file = written(tmp_path, HEAD + more.format(f"{gain}:thinkin"))
    has = "it has thinking, thoughts_before, gain, thoughts_after"
    assert message(file) == f'{file}: arm "other": {gain} has no stage named thinkin; {has}'
    file = written(tmp_path, HEAD + more.format("thinking"))
    assert "should be RECIPE:NAME, such as careless.toml:pretraining" in message(file)
    file = written(tmp_path, HEAD + more.format(f"{gain}:thinking"))
    assert message(file).endswith("has no stage named thoughts_after, which table.evaluation names; it has thinking")
    file = written(tmp_path, HEAD + more.format("none.toml:thinking"))
    assert message(file) == f"{tmp_path}/none.toml: no such recipe"
    file = written(tmp_path, HEAD + more.format(f"{gain}:thoughts_after").replace("other", "untouched"))
    assert message(file) == f'{file}: arm.1.name = "untouched" is already the name of arm.0; change it'
    file = written(tmp_path, HEAD.replace("[table]", '[table]\nagainst = "base"'))
    assert message(file) == f'{file}: table.against = "base" is not an arm; there are untouched'
    file = written(tmp_path, HEAD.replace("seeds", "seed"))
    assert message(file) == f"{file}: seed is no key here; the nearest is seeds"
    file = written(tmp_path, HEAD)
    assert message(file, "thinking.steps=3") == (
        "--set thinking.steps=3: no arm has a stage named thinking; there are thoughts_after"
    )
    assert message(Path(gain)) == f"{gain}: has no [[arm]]; train a recipe without arms with `sleuth train`"
    wrong = r"--set thinking.step=3: stage.\d.step is no key here; the nearest is stage.\d.steps"
    assert re.fullmatch(wrong, message(ARMS, "thinking.step=3"))


def test_steps_shared_with_an_earlier_arm_are_counted_once() -> None:
    _, runs = load_sweep(ARMS)
    own = own_stages(runs)
    steps = {name: sum(run.stage[at].last_step for at in own[name]) for name, run in runs.items()}
    assert (steps["untouched"], steps["shown"], steps["paid"], steps["paid_short"]) == (250, 600, 300, 75)
    assert steps["improved_paid"] == 300  # after improved_shown
