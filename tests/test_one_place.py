"""What a new kind of reward or environment has to touch: its own code, its table, and one line of a family."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import sleuth
from sleuth import family
from sleuth.answers.factory import judges_in, require_gradable, reward_of, reward_spec_of
from sleuth.answers.tables import EpisodeRewardRecipe
from sleuth.dialect import DIALECTS, Dialect
from sleuth.episodes.function import own_code_in
from sleuth.episodes.setting import Setting, trial_group
from sleuth.family import Family
from sleuth.judges.factory import JudgePool, OpenJudge
from sleuth.plan.fit import plan_for_cpu
from sleuth.recipe import GrpoRecipe, Recipe, dump_toml, load_recipe
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.judges import JudgeFields
from sleuth.render import load_tokenizer
from sleuth.runs.model_card import method_citations, method_tags
from sleuth.terminal.recipe_inputs import missing_inputs
from sleuth.types import Case, Env, Episode, EpisodeKey, Piece, Reply, StopReason, Task, Verdict

ROOT = Path(__file__).parents[1]
SOURCE = Path(sleuth.__file__).parent
MODEL = str(ROOT / "models" / "tiny-base")
TASK = Task(id="q", question="Which town?", golden_answers=("Tarn",))


# -- all that a new reward is ------------------------------------------------------------------------------------------


def is_brief(episode: Episode, dialect: Dialect) -> float:
    return float(len(episode.trajectory.text) < 10_000)


class BriefRecipe(EpisodeRewardRecipe):
    """1 for a brief episode."""

    kind: Literal["brief"]
    measure = staticmethod(is_brief)


# -- all that a new judge is -------------------------------------------------------------------------------------------


class YesJudge:
    identity = "yes 1"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(score=1.0, reason="yes") for _ in cases]


class YesJudgeRecipe(JudgeFields):
    """Supports every claim."""

    kind: Literal["yes"]

    def open(self) -> OpenJudge:
        return OpenJudge(judge=YesJudge())


BRIEF = Family(
    name="brief",
    about="Brevity.",
    rewards={"brief": f"{__name__}:BriefRecipe"},
    judges={"yes": f"{__name__}:YesJudgeRecipe"},
)


# -- all that a new environment is -------------------------------------------------------------------------------------


class EchoEnv:
    """Repeats what the policy wrote, once."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def open(self) -> Reply:
        return Reply(pieces=(Piece(text=self.task.question),), max_tokens=8)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        return Reply(pieces=(Piece(text=text),), done="answered")


class EchoEnvRecipe(EnvFields):
    """An environment that repeats."""

    kind: Literal["echo"] = "echo"

    def setting(self, tokenizer: object, tasks: Sequence[Task]) -> EchoSetting:
        return EchoSetting(dialect=DIALECTS["sleuth"], prompt_name="", prompt="", prompt_role="raw", template=None)

    def plain_dialect(self) -> Dialect:
        return DIALECTS["sleuth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoSetting(Setting):
    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return EchoEnv(task)


# ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The families of this file beside ours."""
    with monkeypatch.context() as patch:
        patch.setattr(family, "OURS", (*family.OURS, f"{__name__}:BRIEF"))
        family.all_families.cache_clear()
        yield
    family.all_families.cache_clear()


def changed(*settings: str, **keys: object) -> tuple[Recipe, GrpoRecipe]:
    """The demo with settings, and with keys of its last stage that trains replaced by ones of these kinds."""
    recipe = load_recipe(ROOT / "recipes" / "demo.toml", [f'model="{MODEL}"', *settings])
    at, stage = list(recipe.stages_of(GrpoRecipe).items())[-1]
    stage = stage.model_copy(update=keys)
    stages = (*recipe.stage[:at], stage, *recipe.stage[at + 1 :])
    return recipe.model_copy(update={"stage": stages[at:]}), stage


def problems_of(stage: GrpoRecipe) -> list[str]:
    return [problem for check in stage.combinations() for problem in check(stage)]


def planned(recipe: Recipe) -> bool:
    """Everything that is computed of a recipe before a run."""
    assert dump_toml(recipe)
    return plan_for_cpu(recipe, 16_000_000_000).peak_memory_bytes > 0


@pytest.mark.usefixtures("strangers")
def test_a_reward_of_a_new_kind_is_its_function_its_table_and_one_line(tmp_path: Path) -> None:
    recipe, stage = changed('grpo.reward=[{kind="brief", weight=0.5}]')
    [reward] = stage.reward
    assert isinstance(reward, BriefRecipe)
    assert problems_of(stage) == []
    assert (list(judges_in([reward])), list(missing_inputs(reward))) == ([], [])
    assert method_citations([stage])
    assert planned(recipe)
    [part] = reward_spec_of([reward]).parts
    assert (part.kind, part.scorer, part.weight) == ("brief", "brief", 0.5)
    require_gradable([reward], [TASK])

    tokenizer = load_tokenizer(MODEL)
    setting = stage.env.model_copy(update={"retriever": "empty"}).setting(tokenizer, [TASK])
    group = trial_group(setting, TASK, tokenizer, 512)
    scores = asyncio.run(reward_of([reward], setting.dialect, tokenizer, JudgePool(tmp_path / "none"))(group))
    assert [(score.value, score.parts["brief"]) for score in scores] == [(0.5, 1.0), (0.5, 1.0)]


@pytest.mark.usefixtures("strangers")
def test_a_judge_of_a_new_kind_is_its_class_its_table_and_one_line(tmp_path: Path) -> None:
    recipe, stage = changed('grpo.reward=[{kind="citation", judge="yes"}]')
    assert planned(recipe)
    [use] = judges_in(stage.reward)
    assert isinstance(use.judge, YesJudgeRecipe)
    pool = JudgePool(tmp_path / "none")
    [part] = reward_spec_of(stage.reward, pool.identity).parts
    assert part.scorer.startswith("yes 1, sum=recommended")
    case = Case(question="Which town?", claim="It is Tarn.", evidence="Tarn is a town.")
    assert [verdict.score for verdict in asyncio.run(pool.judge(use.judge).judge([case]))] == [1.0]


def test_a_reward_of_a_new_kind_does_not_fit_a_refiner_unless_it_says_so() -> None:
    refiner = load_recipe(ROOT / "recipes" / "tiny" / "refiner.toml").stages_of(GrpoRecipe).popitem()[1]
    assert "needs an env that searches" in str(
        problems_of(refiner.model_copy(update={"reward": (BriefRecipe(kind="brief"),)}))
    )


def test_an_environment_of_a_new_kind_is_its_class_its_table_and_its_setting() -> None:
    env = EchoEnvRecipe()
    recipe, stage = changed(env=env)
    assert problems_of(stage) == []
    assert list(missing_inputs(env)) == []
    assert own_code_in(stage).keys() == {"families"}  # the module of its table
    assert (method_tags([stage]), bool(method_citations([stage]))) == (["reinforcement-learning"], True)
    assert planned(recipe)
    tokenizer = load_tokenizer(MODEL)
    group = trial_group(stage.env.setting(tokenizer, [TASK]), TASK, tokenizer, 512)
    assert [episode.trajectory.stop for episode in group.episodes] == ["answered", "answered"]
    assert group.episodes[1].trajectory.text == "Which town???"


def test_kinds_of_recipe_tables_are_compared_in_few_places() -> None:
    """An `isinstance` narrows a type where one kind has something to do; a row of them belongs into the tables, as
    methods."""
    found = Counter(
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"isinstance\(.*Recipe", line)
    )
    assert found.total() <= 42, found
    assert max(found.values()) <= 7, found.most_common(3)
