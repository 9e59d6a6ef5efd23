from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import line_of

from sleuth.recipe import GrpoRecipe, Recipe, dump_toml, load_recipe
from sleuth.recipe.load import read_draft
from sleuth.types import SleuthError

Write = Callable[[str, str], Path]


def grpo(recipe: Recipe) -> GrpoRecipe:
    return next(stage for stage in recipe.stage if isinstance(stage, GrpoRecipe))


def flags_of(recipe: Recipe) -> object:
    return getattr(grpo(recipe).env, "template_flags", None)


def message(path: Path, *overrides: str) -> str:
    return line_of(load_recipe, path, overrides)


def test_extends_is_relative_to_its_file_and_may_be_a_chain(demo: Path, write: Write) -> None:
    write("arms/long.toml", 'extends = "../demo.toml"\nseed = 1\n[set]\n"stage.1.steps" = 200\n')
    last = load_recipe(write("arms/deep/longer.toml", 'extends = "../long.toml"\n[set]\n"stage.1.steps" = 300\n'))
    assert (last.seed, last.model) == (1, "models/tiny")
    assert grpo(last).steps == 300
    assert last.stage[0] == load_recipe(demo).stage[0]
    assert [Path(file).name for file in last.resolved_from.files] == ["demo.toml", "long.toml", "longer.toml"]


LOSS = "[stage.loss]\nbeta = 0.5\nclip_high = 0.3\n"


def set_both_ways(write: Write, demo: Path, key: str, value: str) -> list[tuple[Path, list[str]]]:
    parent = write("parent.toml", demo.read_text() + LOSS)
    child = write("child.toml", f'extends = "parent.toml"\n[set]\n"{key}" = {value}\n')
    return [(child, []), (parent, [f"{key}={value}"])]


def test_a_table_changes_the_keys_that_it_has_in_a_file_as_on_the_command_line(demo: Path, write: Write) -> None:
    for path, overrides in set_both_ways(write, demo, "grpo.loss", "{ beta = 0.1 }"):
        recipe = load_recipe(path, overrides)
        assert (grpo(recipe).loss.beta, grpo(recipe).loss.clip_high) == (0.1, 0.3)
        assert recipe.resolved_from.set == ("stage.1.loss.beta=0.1",)


def test_a_table_that_names_its_kind_replaces_the_whole_table(demo: Path, write: Write) -> None:
    table = '{ kind = "refine", prompt = "refine", turn_tokens = 16 }'
    for path, overrides in set_both_ways(write, demo, "grpo.env", table):
        draft, _ = read_draft(path, overrides)
        assert draft.table["stage"][1]["env"] == {"kind": "refine", "prompt": "refine", "turn_tokens": 16}


def test_an_empty_table_takes_away_what_a_table_held(demo: Path, write: Write) -> None:
    flags = (
        '[set]\n"grpo.env.prompt_role" = "user"\n"grpo.env.template_flags" = { enable_thinking = true, other = 1 }\n'
    )
    parent = write("flagged.toml", f'extends = "demo.toml"\n{flags}')
    assert flags_of(load_recipe(parent)) == {"enable_thinking": True, "other": 1}
    child = write("child.toml", 'extends = "flagged.toml"\n[set]\n"grpo.env.template_flags" = {}\n')
    for path, overrides in ((child, []), (parent, ["grpo.env.template_flags={}"])):
        assert flags_of(load_recipe(path, overrides)) == {}
    one = 'extends = "flagged.toml"\nwithout = ["grpo.env.template_flags.other"]\n'
    assert flags_of(load_recipe(write("one.toml", one))) == {"enable_thinking": True}
    for path, overrides in set_both_ways(write, demo, "grpo.lora", "{}"):  # LoRA with its defaults
        assert grpo(load_recipe(path, overrides)).lora is not None


def test_servers_that_run_take_the_place_of_those_to_start_and_the_other_way_round(demo: Path, write: Write) -> None:
    engines = (
        '{ launch = "vllm", cards = [1], requests_at_once = 8 }',
        '{ urls = ["http://a:1"], requests_at_once = 8 }',
    )
    for inherited, changed in (engines, engines[::-1]):
        parent = write("served.toml", f'extends = "demo.toml"\n[set]\n"grpo.engine" = {inherited}\n')
        child = write("child.toml", f'extends = "served.toml"\n[set]\n"grpo.engine" = {changed}\n')
        wanted = grpo(load_recipe(demo, [f"grpo.engine={changed}"])).engine
        for path, overrides in ((child, []), (parent, [f"grpo.engine={changed}"])):
            assert grpo(load_recipe(path, overrides)).engine == wanted
    with pytest.raises(SleuthError, match="exclude each other"):
        load_recipe(demo, ['grpo.engine={launch="vllm", urls=["http://a:1"]}'])


def test_a_child_leaves_out_stages_of_its_parent_and_sets_the_others_by_their_new_numbers(
    demo: Path, write: Write
) -> None:
    text = 'extends = "demo.toml"\nwithout = ["base"]\n[set]\n"stage.0.steps" = 7\n'
    recipe = load_recipe(write("child.toml", text))
    assert [stage.kind for stage in recipe.stage] == [stage.kind for stage in load_recipe(demo).stage[1:]]
    assert grpo(recipe).steps == 7
    for without, said in (
        ('["nope"]', "without: 0 stages are named 'nope'"),
        ('["grpo.context"]', "stage.1.context is missing"),
        ('["grpo.nope"]', "without: stage 'grpo' has no 'nope'; it has kind"),
        ('["grpo.env.nope"]', "without: stage 'grpo'.env has no 'nope'; it has kind"),
        ('["grpo.steps.nope"]', "without: stage 'grpo'.steps has no 'nope'; it is no table"),
        ('"base"', "should be a list of stages"),
    ):
        with pytest.raises(SleuthError, match=said):
            load_recipe(write("wrong.toml", f'extends = "demo.toml"\nwithout = {without}\n'))


@pytest.mark.parametrize("key", ["grpo.loss.beta", "stage.1.loss.beta", "stage.-1.loss.beta"])
def test_a_stage_is_set_by_its_name_or_its_number(demo: Path, write: Write, key: str) -> None:
    recipe = load_recipe(demo, [f"{key}=0.5"])
    assert grpo(recipe).loss.beta == 0.5
    child = write("child.toml", f'extends = "demo.toml"\n[set]\n"{key}" = 0.5\n')
    assert load_recipe(child).stage == recipe.stage


def test_a_stages_name_is_recorded_as_its_number_and_may_have_dots(demo: Path, write: Write) -> None:
    assert load_recipe(demo, ["grpo.steps=7"]).resolved_from.set == ("stage.1.steps=7",)
    dotted = write("dotted.toml", demo.read_text().replace('name = "base"', 'name = "grpo.base"'))
    recipe = load_recipe(dotted, ["grpo.base.data.limit=3", "grpo.steps=7", "grpo.name=last"])
    assert (recipe.stage[0].data.limit, grpo(recipe).steps, grpo(recipe).name) == (3, 7, "last")


def test_a_name_of_no_stage_or_of_several_is_refused_in_one_line(demo: Path, write: Write) -> None:
    assert message(demo, "grop.steps=7") == "--set grop.steps=7: no stage is named grop; there are base, grpo"
    *_, training = demo.read_text().partition('[[stage]]\nkind = "grpo"')
    twice = write("twice.toml", f'{demo.read_text()}\n[[stage]]\nkind = "grpo"{training}')
    assert "2 stages are named grpo; write stage.1 or stage.2 for it" in message(twice, "grpo.steps=7")
    child = write("child.toml", 'extends = "demo.toml"\n[set]\n"trained.steps" = 7\n')
    assert message(child) == f"{child}: [set]: no stage is named trained; there are base, grpo"


def test_files_and_overrides_are_recorded_in_the_order_of_their_use(demo: Path, write: Write) -> None:
    child = write("child.toml", 'extends = "demo.toml"\n[set]\n"stage.1.steps" = 200\n')
    recipe = load_recipe(child, ["device=cpu", "grpo.steps=300"])
    assert grpo(recipe).steps == 300
    assert recipe.resolved_from.files == (str(demo), str(child))
    assert recipe.resolved_from.set == ("stage.1.steps=200", 'device="cpu"', "stage.1.steps=300")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "child.toml"\n', "closes a circle"),
        ('extends = "nowhere.toml"\n', "child.toml: extends a file that is not there: "),
        ('extends = ["a.toml", "b.toml"]\n', "should be the name of one file"),
        ('extends = "demo.toml"\nset = 3\n', "should be a table"),
        ('name = "a"\nseed = \n', "child.toml:2: is no TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(demo: Path, write: Write, text: str, said: str) -> None:
    assert said in message(write("child.toml", text))


def test_an_override_is_parsed_as_toml_and_a_bare_word_as_text(demo: Path) -> None:
    recipe = load_recipe(
        demo,
        [
            "stage.1.steps=50",
            "stage.-1.betas=[0.8, 0.9]",
            "stage.1.reward.0.shuffle=true",
            "grpo.sampling.temperature=0.7",
            "device = cpu",
            'model="a b"',
        ],
    )
    assert (grpo(recipe).steps, grpo(recipe).betas) == (50, (0.8, 0.9))
    assert (grpo(recipe).reward[0].shuffle, grpo(recipe).sampling.temperature) == (True, 0.7)
    assert (recipe.device, recipe.model) == ("cpu", "a b")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("stage.1.steps", "should be KEY=VALUE"),
        ("=3", "should be KEY=VALUE"),
        ("stage.2.steps=3", "stage has 2 entries"),
        ("stage.-3.steps=3", "stage has 2 entries"),
        ("stage.steps=3", "write stage.0.steps"),
        ("stage.1.steps.x=3", "stage.1.steps is a value, not a table"),
        ("resolved_from=3", "not for setting"),
        ("name=a\nb", "should be letters"),
    ],
)
def test_an_override_that_cannot_be_applied_is_reported(demo: Path, override: str, expected: str) -> None:
    text = message(demo, override)
    assert text.startswith("--set ")
    assert expected in text


def test_what_is_no_file_of_text_is_refused_as_a_recipe(tmp_path: Path) -> None:
    assert "is not an ordinary file" in message(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "is no UTF-8 text" in message(tmp_path / "binary.toml")


def test_a_resolved_recipe_of_an_older_version_is_read_without_keys_that_were_deleted(demo: Path, write: Write) -> None:
    text = dump_toml(load_recipe(demo))
    assert "resolved_from" in text
    older = text.replace("max_missing_fraction = 0.5", "max_missing_fraction = 0.5\nmin_siblings = 2")
    assert older != text
    assert load_recipe(write("older.toml", older)).stage == load_recipe(demo).stage
    changed = older.replace("min_siblings = 2", "min_siblings = 3")
    with pytest.raises(SleuthError, match=r"min_siblings was deleted: a group is kept from two scores on"):
        load_recipe(write("changed.toml", changed))
