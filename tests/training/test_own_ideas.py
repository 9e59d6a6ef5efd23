"""GRPO runs with rows, metrics, advantages, schedules and questions of one's own."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from run_files import evaluation, figures, groups, manifest, weights
from verb import sleuth, write_rows

from sleuth.answers.answer import TotalReward
from sleuth.answers.factory import reward_of
from sleuth.data.streamed import Stream, StreamRecipe
from sleuth.judges.factory import JudgePool
from sleuth.learn.batch import Row, collate
from sleuth.own.functions import UserCodeError
from sleuth.recipe import GrpoRecipe, dump_toml, load_recipe
from sleuth.recipe.schedule import interpolated
from sleuth.render import load_tokenizer
from sleuth.runs.rollouts import read_advantages
from sleuth.training.grpo import step_advantages
from sleuth.training.learning import batch_of_step, policy_loss_of
from sleuth.types import Credit, Episode, Group, Score, Segment, SleuthError, Task, Trajectory

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
        values = [[score.value or 0.0 for score in group.scores] for group in groups(tmp_path / "run", step)]
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
    [stage] = load_recipe(recipe, [credited, none]).stages_of(GrpoRecipe).values()
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


# -- schedules ---------------------------------------------------------------------------------------------------------

SCHEDULES = """
def falling(step, metrics):
    before = metrics.get("beta", 0.3)
    assert metrics == {} or metrics["reward_mean"] is not None
    return before / 2 + metrics.get("response_tokens_mean", 0.0) / 1000

def same(step, metrics):
    return 1e-3
"""
TABLE = "grpo.loss.beta={ 0 = 0.3, 2 = 0.1, 3 = 0.1 }"


def test_a_table_is_linear_between_its_steps_and_constant_outside():
    table = {"2": 0.1, "4": 0.3, "10": 0.0}
    found = [interpolated(table, made) for made in (0, 2, 3, 4, 7, 10, 99)]
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.15, 0.0, 0.0])


@pytest.mark.slow
def test_numbers_of_a_table_are_in_force_recorded_and_resumed(run, recipe, tmp_path):
    table = (TABLE, "grpo.learning_rate={ 0 = 1e-3, 4 = 2e-3 }", "grpo.sampling.temperature={ 0 = 1.0, 2 = 0.5 }")
    whole = run(recipe, tmp_path / "whole", *table)
    found = figures(tmp_path / "whole")
    assert [row["beta"] for row in found] == pytest.approx([0.3, 0.2, 0.1, 0.1])
    assert [row["learning_rate"] for row in found] == pytest.approx([1e-3, 1.25e-3, 1.5e-3, 1.75e-3])
    assert [row["temperature"] for row in found] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert max(row["sampler_learner_kl"] for row in found) < 1e-8  # both sides took the temperature of the step
    assert found[-1]["kl"] > 0
    run(recipe, tmp_path / "parts", *table, SHORT)
    assert weights(run(recipe, tmp_path / "parts", *table)) == weights(whole)
    assert figures(tmp_path / "parts") == found
    assert sleuth("report", tmp_path / "whole").exit_code == 0
    replayed = sleuth("replay", tmp_path / "whole", "4", "--allow-code", "--json")
    assert replayed.exit_code == 0, replayed.stderr
    told = json.loads(replayed.stdout)
    assert told["loss"] == pytest.approx(told["recorded_loss"], rel=1e-5)


@pytest.mark.slow
def test_a_function_sees_the_figures_of_the_step_before_also_after_a_resume(run, recipe, tmp_path):
    own(recipe, SCHEDULES)
    chosen = ("grpo.loss.beta=ideas:falling", "grpo.learning_rate=ideas:same")
    whole = run(recipe, tmp_path / "whole", *chosen)
    found = figures(tmp_path / "whole")
    expected = 0.15
    for row in found:
        assert row["beta"] == pytest.approx(expected)
        expected = row["beta"] / 2 + row["response_tokens_mean"] / 1000
    run(recipe, tmp_path / "parts", *chosen, SHORT)
    assert weights(run(recipe, tmp_path / "parts", *chosen)) == weights(whole)
    assert figures(tmp_path / "parts") == found


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("grpo.loss.beta={ 0 = -0.1 }", "stage.0.loss.beta = -0.1: should be greater than or equal to 0"),
        (
            "grpo.loss.beta={ first = 0.1 }",
            "stage.0.loss.beta = {first = 0.1}: should be a number, a table of steps, or",
        ),
        ("grpo.learning_rate=fast", 'stage.0.learning_rate = "fast": should be a valid number'),
        ("grpo.loss.beta=ideas:absent", "ideas.py has no absent"),
        ("grpo.loss.beta=ideas:even", ":{even}: even: takes 1 arguments; expected def even(step, metrics)"),
        ("grpo.loss.beta=ideas:bad", ":{line}: bad: KeyError: 'kl'"),
        ("grpo.loss.beta=ideas:nan", "nan: returned nan as loss.beta; expected a number of 0 or more"),
        ("grpo.sampling.temperature=ideas:none", "none: returned 0 as sampling.temperature; expected a number above 0"),
        ("grpo.learning_rate=ideas:drawn", "drawn: returned another number when asked again"),
    ],
)
def test_a_wrong_schedule_is_one_line_before_the_run(recipe, override, said):
    code = (recipe.parent / "ideas.py").read_text()
    lines = {"even": code.partition("def even")[0].count("\n") + 1, "line": code.count("\n") + 2}
    own(
        recipe,
        "def bad(step, metrics):\n    return metrics['kl']\nimport random\n"
        "def nan(step, metrics): return float('nan')\ndef none(step, metrics): return 0\n"
        "def drawn(step, metrics): return random.random()\n",
    )
    for name, line in lines.items():
        said = said.replace(f"{{{name}}}", str(line))
    assert said in refused(recipe, override)


def test_recipes_without_a_schedule_resolve_to_plain_numbers(recipe):
    [stage] = load_recipe(recipe).stages_of(GrpoRecipe).values()
    assert (stage.learning_rate, stage.loss.beta, stage.sampling.temperature) == (1e-3, 0.0, 1.0)
    table = load_recipe(recipe, [TABLE])
    [stage] = table.stages_of(GrpoRecipe).values()
    assert stage.loss.beta == {"0": 0.3, "2": 0.1, "3": 0.1}
    (recipe.parent / "again.toml").write_text(dump_toml(table))
    assert load_recipe(recipe.parent / "again.toml").stage == table.stage


# -- a loss with more --------------------------------------------------------------------------------------------------

LOSS = """
def own_kl(logprobs, old_logprobs, advantages, weights, *, step, beta, reference):
    kl = (logprobs - reference) * (2 if step else 1)
    return (weights * (beta * kl - (logprobs - old_logprobs).exp() * advantages)).sum()

def steps(logprobs, old_logprobs, advantages, weights, *, step):
    return -(weights * (logprobs - old_logprobs).exp() * advantages).sum() * (1 + step)
"""


def test_a_loss_of_ones_own_gets_step_and_reference_and_its_own_kl_term_is_the_only_one(recipe):
    own(recipe, LOSS)
    where = "grpo.loss.function=ideas:own_kl"
    assert "own_kl: takes the reference, and with loss.beta = 0 there is none; set loss.beta" in refused(recipe, where)
    [stage] = load_recipe(recipe, [where, "grpo.loss.beta=0.5"]).stages_of(GrpoRecipe).values()
    rows = [Row(tokens=(1, 2, 3), trained=(False, True, True), advantage=1.0, sampler_logprobs=(0.0, -1.0, -1.0))]
    batch, logprobs = collate(rows), torch.tensor([[0.0, -1.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[0.0, -1.5, -1.5]])
    for step, expected in ((0, 0.5 * 0.5 - 1), (3, 0.5 * 1.0 - 1)):
        loss, found = policy_loss_of(stage, step)(batch, logprobs, reference)
        assert float(loss.detach()) == pytest.approx(expected)
        assert found["kl"][0, 1] > 0  # measured all the same


# -- questions ---------------------------------------------------------------------------------------------------------

SOURCES = """
from itertools import count

def endless(*, words=1):
    for at in count():
        yield {"question": f"Question {at}?", "level": 1 + at // 4, "words": [f"word {at}"] * words}

def from_start(start):
    for at in count(start):
        yield Task(id=f"t{at}", question=f"Question {at}?", info={"level": 1, "words": [f"word {at}"]})
"""


def streamed(name: str, more: str = "") -> str:
    return f"grpo.data={{ kind = 'python', function = 'ideas:{name}'{more} }}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["endless", "from_start"])
def test_questions_of_a_stream_are_played_in_order_and_go_on_after_a_resume(run, recipe, tmp_path, name):
    own(recipe, SOURCES)
    whole = run(recipe, tmp_path / "whole", streamed(name))
    played = groups(tmp_path / "whole")
    assert [group.task.question for group in played] == [f"Question {at}?" for at in range(8)]
    assert [group.task.id for group in played][:2] == (["row_1", "row_2"] if name == "endless" else ["t0", "t1"])
    if name == "endless":
        assert [group.task.info["level"] for group in played] == [1] * 4 + [2] * 4
    run(recipe, tmp_path / "parts", streamed(name), SHORT)
    assert weights(run(recipe, tmp_path / "parts", streamed(name))) == weights(whole)
    assert groups(tmp_path / "parts") == played
    assert "ideas.py" in manifest(tmp_path / "parts")["sources"]["grpo"]
    planned = sleuth("plan", recipe, "--set", streamed(name), "--json")
    assert planned.exit_code == 0, planned.stderr


def test_a_source_that_yields_other_rows_after_a_resume_is_refused(recipe, tmp_path):
    (tmp_path / "start.txt").write_text("0")
    own(
        recipe,
        "from pathlib import Path\ndef shifted():\n"
        f"    for at in range(int(Path('{tmp_path}/start.txt').read_text()), 99):\n"
        "        yield {'question': str(at)}\n",
    )
    [stage] = load_recipe(recipe, [streamed("shifted")]).stages_of(GrpoRecipe).values()
    assert isinstance(stage.data, StreamRecipe)
    stream = Stream(stage.data)
    assert [task.question for task in (*stream.peek(3), *stream.take(2), *stream.take(2))] == list("0120123")
    again = Stream(stage.data, 4, stream.sha256)
    assert (again.taken, again.sha256, again.take(1)[0].question) == (4, stream.sha256, "4")
    (tmp_path / "start.txt").write_text("1")
    with pytest.raises(UserCodeError, match=r"shifted: yields other rows than the 4 that the run took: put it back"):
        Stream(stage.data, 4, stream.sha256)


def test_a_source_may_fill_the_same_dict_for_each_row(recipe):
    own(
        recipe,
        "def filled():\n    row = {}\n    for at in range(20):\n        row['question'] = str(at)\n        yield row\n",
    )
    [stage] = load_recipe(recipe, [streamed("filled")]).stages_of(GrpoRecipe).values()
    assert isinstance(stage.data, StreamRecipe)
    assert [task.question for task in Stream(stage.data).take(3)] == ["0", "1", "2"]


def test_a_source_that_ends_early_says_after_how_many_rows(recipe):
    own(recipe, "def few():\n    return [{'question': str(at)} for at in range(5)]\n")
    [stage] = load_recipe(recipe, [streamed("few")]).stages_of(GrpoRecipe).values()
    assert isinstance(stage.data, StreamRecipe)
    stream = Stream(stage.data)
    stream.take(3)
    with pytest.raises(UserCodeError, match=r"ideas\.py:\d+: few: ended after 5 rows, and 4 more are needed"):
        stream.take(4)


@pytest.mark.parametrize(
    ("code", "more", "said"),
    [
        ("    return 7", "", "bad: TypeError: 'int' object is not iterable"),
        ("    yield {'level': 1}", "", "bad: row 1: no `question`; the row has id, level"),
        ("    yield 'a question'", "", "bad: yielded 'a question' as row 1; expected a dict or a sleuth.types.Task"),
        ("    return []", "", "bad: yields no rows"),
        ("    yield {'question': str(1 / 0)}", "", ":{line}: bad: ZeroDivisionError: division by zero"),
        ("    import random\n    yield {'question': str(random.random())}", "", "bad: yields other rows when it is"),
        (
            "    import time\n    time.sleep(9)\n    yield {}",
            ", seconds = 0.2",
            "bad: did not return within 0.2 seconds",
        ),
        ("    yield {}", ", parameters = { width = 2 }", "bad: has no parameter width"),
    ],
)
def test_a_wrong_source_is_one_line_before_the_run(recipe, code, more, said):
    line = (recipe.parent / "ideas.py").read_text().count("\n") + 2
    own(recipe, f"def bad():\n{code}\n")
    assert said.replace("{line}", str(line)) in refused(recipe, streamed("bad", more))
