"""GRPO runs with rows, metrics, advantages, schedules and questions of one's own."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused
from run_files import evaluation, figures, groups, weights
from verb import sleuth, write_rows

from sleuth.answers.answer import TotalReward
from sleuth.answers.factory import reward_of
from sleuth.judges.factory import JudgePool
from sleuth.recipe import load_recipe
from sleuth.render import load_tokenizer
from sleuth.runs.rollouts import read_advantages
from sleuth.training.grpo import step_advantages
from sleuth.training.learning import batch_of_step
from sleuth.types import Credit, Episode, Group, Score, Segment, SleuthError, Task, Trajectory

Run = Callable[..., Path]
BASE = Path(__file__).parents[2] / "models" / "tiny-base"

CODE = """
from sleuth.types import Action, Episode, Piece, Reply, Task

class Writing:
    def __init__(self, task: Task) -> None:
        self.task = task

    async def open(self) -> Reply:
        return Reply(pieces=(Piece(text=self.task.info["words"][0] + "\\n"),), max_tokens=6)

    async def reply(self, text, stop) -> Reply:
        return Reply(action=Action(kind="answer", text=text), done="answered")

def written(episode: Episode) -> list[int]:
    return [token for one in episode.whole.segments if one.author == "policy" for token in one.tokens]

def even(episode: Episode) -> float:
    return sum(token % 2 == 0 for token in written(episode)) / 6 * episode.task.info["level"]
"""
ROWS = [{"question": f"Question {at}?", "level": at % 3 + 1, "words": [f"word {at}"]} for at in range(8)]
RECIPE = """
name = "ideas"
model = "{model}"

[[stage]]
kind = "grpo"
steps = 4
save_every = 2
prompts_per_step = 2
samples_per_prompt = 4
probe_prompts = 0
learning_rate = 1e-3
context = 64
data = {{ questions = "{rows}" }}
env = {{ kind = "python", function = "ideas:Writing" }}
reward = [{{ kind = "python", function = "ideas:even" }}]

[[stage]]
kind = "evaluate"
name = "trained"
data = {{ questions = "{rows}", limit = 2 }}
"""
SHORT = "grpo.stop_after=2"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe beside code of the user and rows without golden answers."""
    (tmp_path / "ideas.py").write_text(CODE)
    file = tmp_path / "ideas.toml"
    file.write_text(RECIPE.format(model=BASE, rows=write_rows(tmp_path / "rows.jsonl", ROWS)))
    return file


def own(recipe: Path, code: str) -> None:
    """Adds to the user's code."""
    with (recipe.parent / "ideas.py").open("a") as file:
        file.write(code)


@pytest.mark.slow
def test_rows_without_answers_reach_environment_reward_and_rescoring_with_all_their_columns(run, recipe, tmp_path):
    whole = run(recipe, tmp_path / "whole")
    played = groups(tmp_path / "whole")
    assert {group.task.golden_answers for group in played} == {()}
    for group in played:
        assert group.episodes[0].trajectory.segments[0].text == group.task.info["words"][0] + "\n"
        evens = [sum(token % 2 == 0 for token in one.trajectory.segments[1].tokens) for one in group.episodes]
        assert [score.value for score in group.scores] == [n / 6 * group.task.info["level"] for n in evens]
    trained = evaluation(tmp_path / "whole", "trained")
    assert (trained["score"]["n"], trained["missing"]["value"], trained["headline"][0]) == (2, 0.0, "score")
    assert "em" not in trained or trained["em"]["n"] == 0
    run(recipe, tmp_path / "parts", SHORT)
    assert weights(run(recipe, tmp_path / "parts")) == weights(whole)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    (tmp_path / "new.toml").write_text('[[reward]]\nkind = "python"\nfunction = "ideas:even"\n')
    rescored = sleuth("rescore", tmp_path / "whole", "--reward", tmp_path / "new.toml", "--json")
    assert rescored.exit_code == 0, rescored.stderr
    [stage] = json.loads(rescored.stdout)["stages"]
    assert (stage["within"]["value"], stage["after"]["missing"]) == (1.0, 0)


def test_a_reward_that_needs_golden_answers_is_named_before_the_run(recipe):
    answer = "grpo.reward=[{ kind = 'python', function = 'ideas:even' }, { kind = 'token_f1', weight = 0.5 }]"
    assert refused(recipe, answer) == (
        "stage.0 (grpo): question 'row_1' has no golden_answers, and the token_f1 reward needs them; expected a list "
        'such as ["Tarn"], or an `answer`; its other columns are level, words'
    )


# -- metrics -----------------------------------------------------------------------------------------------------------

METRICS = """
def odd(episode: Episode) -> float | None:
    return None if episode.sample == 1 else float(len(written(episode)) % 2)
"""
WITH_METRICS = (
    "grpo.reward=[{ kind = 'python', function = 'ideas:even' }, { kind = 'format', weight = 0 }, "
    "{ kind = 'python', function = 'ideas:odd', weight = 0 }]"
)


@pytest.mark.slow
def test_a_metric_is_measured_everywhere_and_changes_no_byte_of_the_training(run, recipe, tmp_path):
    own(recipe, METRICS)
    plain, measured = run(recipe, tmp_path / "plain", SHORT), run(recipe, tmp_path / "measured", SHORT, WITH_METRICS)
    assert weights(plain) == weights(measured)
    for step in (1, 2):
        [one, two] = groups(tmp_path / "plain", step), groups(tmp_path / "measured", step)
        assert [s.value for g in one for s in g.scores] == [s.value for g in two for s in g.scores]
        odds = [s.parts["score_odd"] for g in two for s in g.scores if "score_odd" in s.parts]
        assert len(odds) == 6  # of 8: two are missing
        row = figures(tmp_path / "measured")[step - 1]
        assert (row["score_odd"], row["missing_fraction"]) == (pytest.approx(sum(odds) / 6), 0)
    trained = evaluation(tmp_path / "measured", "trained")
    assert (trained["score_odd"]["n"], trained["score"]) == (2, evaluation(tmp_path / "plain", "trained")["score"])
    shutil.copytree(tmp_path / "measured", tmp_path / "other")
    compared = sleuth("compare", tmp_path / "measured", tmp_path / "other", "--json")
    assert "score_odd" in compared.stdout, compared.stderr
    assert sleuth("report", tmp_path / "measured").exit_code == 0
    assert "score_odd" in (tmp_path / "measured" / "report.html").read_text()


def test_a_stage_that_pays_nothing_is_refused(recipe):
    assert refused(recipe, "grpo.reward=[{ kind = 'python', function = 'ideas:even', weight = 0 }]").endswith(
        "stage.0.reward: every weight is 0, so that no episode is paid; give one a weight, or add [stage.teacher]"
    )


# -- advantages --------------------------------------------------------------------------------------------------------

ADVANTAGES = """
def halved(scores):
    best = max(score for score in scores if score is not None)
    return [None if score is None else (score - best) / 2 for score in scores]

def over_batch(batch):
    known = [score for scores in batch for score in scores if score is not None]
    mean = sum(known) / len(known)
    return [[None if score is None else score - mean for score in scores] for scores in batch]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["halved", "over_batch"])
def test_advantages_are_what_the_function_says_of_a_group_or_of_the_batch(run, recipe, tmp_path, name):
    own(recipe, ADVANTAGES)
    chosen = f"grpo.loss.advantage=ideas:{name}"
    whole = run(recipe, tmp_path / "run", chosen)
    for step in range(1, 5):
        values = [[score.value for score in group.scores] for group in groups(tmp_path / "run", step)]
        every = [value for of_group in values for value in of_group]
        expected = [
            (value - max(of_group)) / 2 if name == "halved" else value - sum(every) / 8
            for of_group in values
            for value in of_group
        ]
        stored = read_advantages(tmp_path / "run" / "rollouts" / f"step-{step:06d}.parquet")
        assert [value for of_group in stored for value in of_group] == pytest.approx(expected)
    run(recipe, tmp_path / "parts", chosen, SHORT)
    code = (recipe.parent / "ideas.py").read_text()
    own(recipe, "# another byte\n")
    with pytest.raises(SleuthError, match=r"ideas\.py"):
        run(recipe, tmp_path / "parts", chosen)
    (recipe.parent / "ideas.py").write_text(code)
    assert weights(run(recipe, tmp_path / "parts", chosen)) == weights(whole)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def bad(values): return values", ":{line}: bad: takes neither scores nor a batch; expected def bad(scores)"),
        ("def bad(scores, width): return scores", ":{line}: bad: needs a value of width, and parameters has none"),
        ("def bad(scores): return scores[1:]", ":{line}: bad: returned [0.0, 0.5, None]; expected 4 advantages"),
        ("def bad(batch): return batch[0]", "returned [1.0, 0.0, 0.5, None]; expected a list for each of 3 groups"),
        ("def bad(scores): return [float('nan')] * 4", ":{line}: bad: returned nan as an advantage; expected a finite"),
        ("def bad(scores): return 1 / 0", ":{line}: bad: ZeroDivisionError: division by zero"),
        ("import random\ndef bad(scores): return [random.random()] * 4", "returned other advantages for the same"),
        ("def worse(scores): return scores", "ideas.py has no bad"),
    ],
)
def test_a_function_that_gives_no_advantages_is_one_line_before_the_run(recipe, code, said):
    line = len((recipe.parent / "ideas.py").read_text().splitlines()) + 1
    own(recipe, code + "\n")
    assert said.format(line=line) in refused(recipe, "grpo.loss.advantage=ideas:bad")


def test_what_an_advantage_may_be_is_named(recipe):
    with pytest.raises(SleuthError, match=r'should be "grpo" or "centered" or .* or "none" or "MODULE:NAME"'):
        load_recipe(recipe, ["grpo.loss.advantage=gpro"])


CREDITS = """
from sleuth.types import Credit, Score

def credited(episode: Episode) -> Score:
    return Score(value=float(episode.sample), credits=(Credit(segment=1, value=0.5, end=2),))
"""


def test_with_advantage_none_credits_of_ones_own_train_alone(recipe):
    own(recipe, CREDITS)
    credited = "grpo.reward=[{ kind = 'python', function = 'ideas:credited' }]"
    refused_ = "grpo.reward=[{ kind = 'format' }]"
    none = "grpo.loss.advantage=none"
    with pytest.raises(SleuthError, match=r'"none" leaves nothing to learn from: add .* credits'):
        load_recipe(recipe, [refused_, none])
    stage = load_recipe(recipe, [credited, none]).stage[0]
    segments = (
        Segment(author="env", tokens=(5,), text="?"),
        Segment(author="policy", tokens=(6, 7, 8), text="!", logprobs=(-1.0,) * 3, policy_version=0),
    )
    task = Task(id="q", question="?", info={"level": 1})
    episodes = [Episode(task=task, sample=at, trajectories=(Trajectory(segments=segments),)) for at in range(2)]
    tokenizer = load_tokenizer(str(BASE))
    reward = reward_of(stage.reward, stage.env.plain_dialect(), tokenizer, JudgePool(Path("unused")))
    group = Group(task=task, episodes=tuple(episodes))
    group = replace(group, scores=tuple(asyncio.run(reward(group))))
    advantages = step_advantages([group], stage)
    assert advantages == [[0.0, 0.0]]
    batch = batch_of_step([group], advantages, stage)
    assert batch is not None
    assert batch.advantages.tolist() == [[0.0, 0.5, 0.5, 0.0]] * 2


def test_credits_of_a_metric_reach_no_token():
    class Credited:
        async def __call__(self, group: Group) -> list[Score]:
            return [Score(value=None, credits=(Credit(segment=0, value=1.0),)) for _ in group.episodes]

    class One:
        async def __call__(self, group: Group) -> list[Score]:
            return [Score(value=1.0) for _ in group.episodes]

    task = Task(id="q", question="?")
    group = Group(task=task, episodes=(Episode(task=task, sample=0, trajectories=(Trajectory(segments=()),)),))
    [score] = asyncio.run(TotalReward([One(), Credited()], [1.0, 0.0])(group))
    assert (score.value, score.credits) == (1.0, ())
    [score] = asyncio.run(TotalReward([One(), Credited()], [1.0, 0.5])(group))
    assert score.value is None
