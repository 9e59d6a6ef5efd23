"""Functions of a user in a recipe: where their modules are looked for, and the line of each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.recipe import Recipe, dump_toml, load_recipe
from sleuth.recipe.load import load_rewards
from sleuth.terminal.recipe_inputs import missing_inputs
from sleuth.types import SleuthError

Write = Callable[[str, str], Path]
REWARD = "stage.1.reward=[{{ kind = 'python', function = '{}', parameters = {{ limit = 3 }} }}]"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")


def function_in(recipe: Path, name: str = "own_names:f") -> str:
    stage = load_recipe(recipe, [REWARD.format(name)]).stage[1]
    return stage.reward[0].function


def test_a_module_is_looked_for_beside_the_recipe_then_beside_its_parents_then_in_the_current_folder(
    demo: Path, write: Write, tmp_path: Path
) -> None:
    child = write("mine/child.toml", 'extends = "../demo.toml"\n')
    assert function_in(child) == "own_names:f"
    write("current/own_names.py", "")
    assert function_in(child) == "own_names.py:f"
    write("own_names.py", "")
    assert function_in(child) == str(tmp_path / "own_names.py:f")
    write("mine/own_names.py", "")
    assert function_in(child) == str(tmp_path / "mine" / "own_names.py:f")


def test_a_resolved_recipe_keeps_its_files_wherever_it_is_stored(demo: Path, write: Write, tmp_path: Path) -> None:
    write("own_names.py", "def f(episode, limit): ...")
    resolved = load_recipe(demo, [REWARD.format("own_names:f")])
    copy = write("runs/x/recipe.toml", dump_toml(resolved))
    write("runs/x/own_names.py", "another")
    assert load_recipe(copy).stage == resolved.stage
    assert resolved.stage[1].reward[0].parameters == {"limit": 3}


def test_a_recipe_that_is_validated_in_python_is_the_one_that_is_stored(demo: Path, write: Write) -> None:
    write("current/own_names.py", "def f(episode, limit): ...")
    tables = load_recipe(demo, [REWARD.format("elsewhere:f")]).model_dump(exclude={"resolved_from"})
    tables["stage"][1]["reward"][0]["function"] = "own_names:f"
    made = Recipe.model_validate(tables)
    assert load_recipe(write("runs/x/recipe.toml", dump_toml(made))).stage == made.stage


def test_a_file_that_a_function_reads_and_is_missing_is_one_line(demo: Path, write: Write) -> None:
    write("current/own_names.py", "def f(episode, limit): ...")
    text = REWARD.format("own_names:f").replace(" }]", ", files = ['words.txt'] }]")

    def missing() -> list[str]:
        """What is wrong with the rewards; the demo's world is not here either."""
        with pytest.raises(SleuthError) as caught:
            load_recipe(demo, [text], missing_inputs)
        return [line for line in caught.value.args if "reward" in line]

    [line] = missing()
    assert line.endswith("""stage.1.reward.0.files = ["words.txt"]: words.txt: no such file""")
    write("current/words.txt", "one")
    assert not missing()


def test_parameters_are_no_names_of_functions(demo: Path, write: Write) -> None:
    write("current/own_names.py", "")
    text = "stage.1.reward=[{ kind = 'python', function = 'json:loads', parameters = { function = 'own_names:f' } }]"
    assert load_recipe(demo, [text]).stage[1].reward[0].parameters == {"function": "own_names:f"}


def test_a_file_of_rewards_looks_beside_itself(write: Write, tmp_path: Path) -> None:
    write("rewards/own_names.py", "")
    file = write("rewards/new.toml", '[[reward]]\nkind = "python"\nfunction = "own_names:f"\n')
    assert load_rewards(file).reward[0].function == str(tmp_path / "rewards" / "own_names.py:f")


def problems(recipe: Path, *overrides: str) -> list[str]:
    with pytest.raises(SleuthError) as caught:
        load_recipe(recipe, overrides, look=missing_inputs)
    return [line for line in caught.value.args if "world/" not in line and "models/" not in line]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            REWARD.format("nowhere:f"),
            'stage.1.reward.0.function = "nowhere:f": there is no module nowhere: nowhere.py is neither beside the '
            "recipe nor in the current folder, and no installed package has it",
        ),
        (
            REWARD.format("own_names:brevty"),
            'stage.1.reward.0.function = "own_names.py:brevty": own_names.py has no brevty; the nearest is brevity',
        ),
        (
            REWARD.format("own_names:brevity"),
            'stage.1.reward.0.function = "own_names.py:brevity": own_names.py:1: brevity: has no parameter limit; the '
            "nearest is limits",
        ),
        (
            REWARD.format("brevity"),
            'stage.1.reward.0.function = "brevity": should be MODULE:NAME, such as my_rewards:brevity; found '
            "'brevity'",
        ),
        (
            "stage.1.reward=[{ kind = 'own_names:brevity' }]",
            'stage.1.reward.0.kind = "own_names:brevity": should be one of "answer", "token_f1", "format", "python", '
            '"environment", "cited_answer", "suffix", "gain", "citation", "rubric"; for a function of your own, set '
            'kind = "python" and function = "own_names:brevity"',
        ),
        (
            "stage.1.env={ kind = 'tools', tools = ['own_names:f', 'other:f'], prompt = 'plain' }",
            "stage.1.env.tools has f twice; the policy could call only one of them",
        ),
        (
            "stage.1.loss.parameters={ x = 1 }",
            "stage.1.loss.parameters have no effect without function, a loss of your own; remove them",
        ),
        (
            "stage.1.loss={ function = 'own_names:brevity', policy_loss = 'cispo' }",
            'stage.1.loss.policy_loss = "cispo" has no effect with function, which replaces it; remove one of the two',
        ),
    ],
)
def test_each_mistake_is_one_line_before_the_run(override: str, expected: str, demo: Path, write: Write) -> None:
    write("current/own_names.py", "def brevity(episode, limits=1): ...\n")
    found = problems(demo, override)
    assert any(expected in line for line in found), found


def test_a_recipe_may_be_loaded_without_importing_anything(demo: Path, write: Write) -> None:
    write("current/own_names.py", "raise SystemExit(3)")
    assert function_in(demo) == "own_names.py:f"


def test_two_functions_of_one_name_are_refused_since_their_figures_would_be_one(demo: Path, write: Write) -> None:
    write("current/own_names.py", "def f(episode): ...")
    two = (
        "stage.1.reward=[{ kind = 'python', function = 'own_names:f' }, { kind = 'python', function = 'own_names:f' }]"
    )
    assert any("reward.1.function is called f, as that of reward.0" in line for line in problems(demo, two))
    lines = problems(demo, REWARD.format("own_names:search_r1"))
    assert any("reward.0.function is called search_r1, as a published scorer" in line for line in lines)
    one = "{ kind = 'python', function = 'own_names:f' }"
    numbers, texts = "steps = 1, learning_rate = 1.0, prompts_per_step = 1", "{ kind = 'text', texts = 'q.jsonl' }"
    pool = f"stage.1={{ kind = 'online_dpo', {numbers}, data = {texts}, reward = [{one}, {one}] }}"
    assert any("reward.1.function is called f, as that of reward.0" in line for line in problems(demo, pool))
