"""A stage with a teacher: what follows it, that it can be stopped and replayed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from refusals import refused
from run_files import figures, manifest, weights
from verb import sleuth

from sleuth.answers.factory import rightness
from sleuth.cli.pipeline import require_inputs
from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.training.learning import guidance_of
from sleuth.types import Score, SleuthError

PARTLY = 'stage.1.reward=[{ kind = "token_f1" }]'
BRIEF = ("stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.save_every=1", "stage.1.prompts_per_step=2")


@pytest.fixture
def teacher(finished) -> Path:
    """A model that has learned a little more than the policy."""
    return finished()


def following(teacher: Path, *more: str) -> tuple[str, ...]:
    return (f'stage.1.teacher.model="{teacher}"', *more, *BRIEF)


@pytest.mark.parametrize(
    ("when", "value", "weight"),
    [
        ("always", 1.0, 0.5),
        ("always", 0.0, 0.5),
        ("always", None, 0.0),
        ("wrong", 1.0, 0.0),
        ("wrong", 0.9, 0.5),
        ("wrong", None, 0.0),
    ],
)
def test_a_missing_score_is_never_a_wrong_answer(recipe_file, when, value, weight):
    stage = stage_of(recipe_file, f'stage.1.teacher={{ model = "m", when = "{when}", weight = 0.5 }}', PARTLY)
    assert guidance_of(Score(value=value), stage=stage) == weight
    assert guidance_of(Score(value=value), stage=stage.model_copy(update={"teacher": None})) == 0.0


@pytest.mark.parametrize(
    ("reward", "score", "right"),
    [
        ('{ kind = "answer", weight = 0.5 }', Score(value=0.5, parts={"em": 1.0, "correct": 1.0}), 1.0),
        ('{ kind = "answer", weight = 0.5 }', Score(value=0.0, parts={"em": 0.0, "wrong": 1.0}), 0.0),
        (
            '{ kind = "answer" }, { kind = "format", weight = 0.2 }',
            Score(value=1.0, parts={"correct": 1.0, "format": 0.0}),
            1.0,
        ),
        (
            '{ kind = "answer", scorer = "search_r1_format" }',
            Score(value=0.2, parts={"correct": 1.0, "score_search_r1_format": 0.2}),
            0.2,
        ),
        ('{ kind = "token_f1", weight = 2 }, { kind = "format", weight = 2 }', Score(value=2.0), 0.5),
        ('{ kind = "token_f1", weight = 2 }', Score(value=None), None),
    ],
)
def test_right_is_what_the_scorer_says_or_a_share_of_the_attainable(recipe_file, reward, score, right):
    stage = stage_of(recipe_file, 'stage.1.teacher={ model = "m", when = "wrong" }', f"stage.1.reward=[{reward}]")
    assert rightness(score, stage.reward) == right
    assert guidance_of(score, stage=stage) == (0.0 if right in (1.0, None) else 1.0)


def test_what_a_right_episode_scores_has_to_be_said_of_a_function(recipe_file):
    reward = 'stage.1.reward=[{ kind = "python", function = "my_rewards:brevity" }]'
    with pytest.raises(SleuthError, match=r'teacher.when = "wrong": what a right episode scores is not known'):
        stage_of(recipe_file, 'stage.1.teacher={ model = "m", when = "wrong" }', reward)
    stage_of(recipe_file, 'stage.1.teacher={ model = "m" }', reward)


def stage_of(recipe_file: Path, *overrides: str) -> GrpoRecipe:
    [stage] = load_recipe(recipe_file, overrides).stages_of(GrpoRecipe).values()
    return stage


@pytest.mark.slow
def test_a_policy_that_only_follows_its_teacher_comes_closer_and_goes_on_as_if_never_stopped(
    run, recipe_file, teacher, tmp_path
):
    alone = following(teacher, 'stage.1.loss.advantage="none"', "stage.1.steps=3")
    whole = run(recipe_file, tmp_path / "whole", *alone)
    divergences = [row["teacher_kl"] for row in figures(tmp_path / "whole")]
    assert len(divergences) == 3
    assert divergences[-1] < divergences[0]
    run(recipe_file, tmp_path / "parts", *alone, "stage.1.stop_after=1")
    continued = run(recipe_file, tmp_path / "parts", *alone)
    assert weights(continued) == weights(whole)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    result = sleuth("replay", tmp_path / "whole", 3, "--json")
    found = json.loads(result.stdout)
    assert found["loss"] == found["recorded_loss"] == figures(tmp_path / "whole")[-1]["loss"]


@pytest.fixture
def copied(teacher, tmp_path) -> Path:
    """A copy of the teacher, to be changed."""
    return Path(shutil.copytree(teacher, tmp_path / "teacher"))


def test_another_teacher_is_refused_when_a_stage_goes_on(run, recipe_file, teacher, copied, tmp_path):
    run(recipe_file, tmp_path / "run", *following(copied), "stage.1.stop_after=1")
    assert len(manifest(tmp_path / "run")["hashes"]["teacher"]) == 64
    shutil.rmtree(copied)
    shutil.copytree(teacher.with_name("step-000002"), copied)
    with pytest.raises(SleuthError) as caught:
        run(recipe_file, tmp_path / "run", *following(copied))
    [line] = str(caught.value).splitlines()
    assert f"{copied}: this teacher has other weights than the one that the stage began with" in line


def test_a_teacher_that_reads_other_tokens_is_refused_before_the_run(recipe_file, copied):
    vocabulary = json.loads((copied / "tokenizer.json").read_text())
    words = vocabulary["model"]["vocab"]
    first, second = sorted(words, key=words.get)[-2:]
    words[first], words[second] = words[second], words[first]
    (copied / "tokenizer.json").write_text(json.dumps(vocabulary))
    (copied / "SHA256SUMS").unlink()  # else the changed file is damage
    assert "2 of 877 tokens differ, such as" in refused(recipe_file, *following(copied))


def test_a_teacher_of_shorter_texts_than_the_episodes_is_refused_before_the_run(recipe_file, copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    (copied / "SHA256SUMS").unlink()
    assert "is more than the 64 positions of this teacher" in refused(recipe_file, *following(copied))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (['loss.advantage="none"'], 'loss.advantage = "none" leaves nothing to learn from'),
        (['teacher.model="nowhere"'], "no such"),
        (
            ['teacher={ model = "models/tiny-base", top_k = 8 }', 'loss.ratio="sequence"'],
            "teacher.top_k needs a loss that is a sum over tokens, and loss.ratio makes it none",
        ),
        (
            ['teacher={ model = "models/tiny-base", top_k = 900 }'],
            "teacher.top_k = 900 is not below the 877 words of the vocabulary",
        ),
        (['teacher.model="models/tiny-base"', "replace_no_signal=1"], "replace_no_signal = 1 leaves out"),
    ],
)
def test_what_cannot_be_followed_is_one_line(recipe_file, settings, reason):
    assert reason in refused(recipe_file, *(f"stage.1.{setting}" for setting in settings))


def test_a_teacher_must_have_the_tokens_that_earlier_stages_add(recipe_file, tmp_path):
    (tmp_path / "text.txt").write_text("Ada Voss was born in Tarn. " * 40)
    adding = f"""[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 1
learning_rate = 1e-3
tokens = ["<claim>"]
data = {{ kind = "text", texts = "{tmp_path / "text.txt"}", prefix_tokens = 8, suffix_tokens = 8 }}

"""
    before, at, after = recipe_file.read_text().partition('[[stage]]\nkind = "grpo"\n')
    recipe_file.write_text(f'{before}{adding}{at}teacher = {{ model = "models/tiny-base" }}\n{after}')
    assert "1 of 878 tokens differ, such as '<claim>'" in refused(recipe_file)
    recipe_file.write_text(recipe_file.read_text().replace('tokens = ["<claim>"]', ""))
    require_inputs(load_recipe(recipe_file))
