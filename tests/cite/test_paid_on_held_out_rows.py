"""What was paid, measured on rows that were held out: by the paid judge and by another one, and never a zero for a
verdict that is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from refined import BORN, refined
from verb import sleuth

from sleuth.answers.factory import PaidScores, eval_reward_of
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.dialect import REFINERS
from sleuth.cite.rubric_reward import RubricRecipe
from sleuth.cite.tables import RefineEnvRecipe
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.evaluate import evaluation
from sleuth.recipe import load_recipe
from sleuth.recipe.rewards import RewardInputs
from sleuth.recipe.sweep import load_sweep
from sleuth.report.arms import read_arms
from sleuth.report.comparison import compare
from sleuth.runs.eval_file import write_eval
from sleuth.types import Case, Episode, Group, Rubric, SleuthError, Verdict

RECIPES = Path(__file__).parents[2] / "recipes"
DIALECT = REFINERS["answer_only"]
RUBRICS = (Rubric(title="", description="Names Tarn."), Rubric(title="", description="The sea.", wanted=False))
UNCITED = "Ada Voss was born in Tarn."
WRONG = "<snippet id=c3>Ada Voss was born in Tarn.</snippet>"  # of somebody else
REWARDS = (
    RubricRecipe.model_validate({"kind": "rubric", "weight": 10.0}),
    CitationRecipe.model_validate(
        {"kind": "citation", "weight": 2.0, "sum": "convex", "citation_weight": 1.0, "content": "none"}
    ),
)


class Told:
    """A judge that is told how far an answer fulfils a criterion, or evidence supports a claim; None: it is out."""

    def __init__(self, rate: Callable[[Case], float | None]) -> None:
        self.rate = rate

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(score=self.rate(case), reason="out") for case in cases]


def naive(case: Case) -> float:
    """Finds all that is wanted in every answer, and every citation right."""
    return float("sea" not in case.criterion)


def careful(case: Case) -> float:
    """Finds it only where the right snippet is cited."""
    return naive(case) * ("id=a1" in case.claim if case.criterion else "1874" in case.evidence)


def by(name: str, rate: Callable[[Case], float | None]) -> PaidScores:
    pool = cast(Any, SimpleNamespace(judge=lambda table: Told(rate)))
    return PaidScores.of(name, REWARDS, RewardInputs(dialect=DIALECT, tokenizer=None, judge_pool=pool))


def asked_about(id_: str, answer: str) -> Episode:
    episode = refined(answer)
    return replace(episode, task=replace(episode.task, id=id_, rubrics=RUBRICS))


def measured(scores: list[PaidScores], answers: Mapping[str, str], name: str = "trained") -> dict[str, Any]:
    """The contents of an evaluation in which these answers were given."""
    episodes = [asked_about(id_, answer) for id_, answer in answers.items()]
    reward = eval_reward_of("strict", DIALECT, None, measured=scores)
    groups = [Group(task=episode.task, episodes=(episode,)) for episode in episodes]
    answered = [(group.episodes[0], asyncio.run(reward(group))[0]) for group in groups]
    setting = RefineEnvRecipe(kind="refine").setting(None, [episodes[0].task])
    nobody = cast(Any, None)
    session = EvalSession(model=nobody, tokenizer=nobody, setting=setting, context=100, measured=scores)
    return evaluation(answered, session, name=name, model="m")


def values(contents: Mapping[str, Any], *names: str) -> list[tuple[float | None, int]]:
    return [(contents[name]["value"] and round(contents[name]["value"], 6), contents[name]["n"]) for name in names]


def test_the_parts_of_a_reward_are_figures_by_the_paid_judge_and_by_another() -> None:
    contents = measured(
        [by("score", naive), by("audit_score", careful)], {"right": BORN, "wrong": WRONG, "uncited": UNCITED}
    )
    # Paid: 10 x 1 + 2 x 1, the same for the wrong snippet, and 10 without a citation. Audited: 12, 0 and 0.
    assert values(contents, "score", "audit_score", "audit_gap") == [(11.333333, 3), (4.0, 3), (7.333333, 3)]
    assert values(contents, "score/rubric", "score/citation", "score/citation_f1") == [(1.0, 3)] + [(0.666667, 3)] * 2
    assert values(contents, "audit_score/rubric", "audit_score/citation") == [(0.333333, 3), (0.333333, 3)]
    assert contents["headline"] == ["score", "audit_score", "audit_gap", "score/rubric", "score/citation"]
    assert contents["score"]["low"] == 10.0
    assert contents["score"]["high"] == 12.0
    assert [record["audit_score"] for record in contents["records"]] == [12.0, 0.0, 0.0]
    assert contents["missing"]["value"] == 0.0


def test_base_taught_and_trained_stand_side_by_side_with_paired_differences(tmp_path: Path) -> None:
    answers = {"base": [UNCITED] * 3, "taught": [BORN, UNCITED, UNCITED], "trained": [BORN, WRONG, WRONG]}
    for name, texts in answers.items():
        scores = [by("score", naive), by("audit_score", careful)]
        write_eval(tmp_path / f"{name}.json", measured(scores, dict(zip("abc", texts, strict=True)), name))
    compared = compare(read_arms([str(tmp_path / f"{name}.json") for name in answers])).figures
    found = {
        (key, arm): (level.value, apart and apart.measured.value)
        for key, one in compared.items()
        for arm, level in one.levels.items()
        for apart in [one.differences.get(("base", arm))]
    }
    # Of the 2 that the paid judge gives after training two thirds are for snippets of somebody else.
    assert [found["score", name] for name in answers] == [
        (10.0, None),
        (pytest.approx(32 / 3), pytest.approx(2 / 3)),
        (12.0, 2.0),
    ]
    assert [found["audit_score", name] for name in answers] == [(0.0, None), (4.0, 4.0), (4.0, 4.0)]
    assert found["audit_gap", "trained"] == (8.0, -2.0)


def test_the_verb_measures_the_rewards_of_a_file(world: Path, tmp_path: Path) -> None:
    file = tmp_path / "reward.toml"
    file.write_text('[[reward]]\nkind = "rubric"\n\n[[reward]]\nkind = "citation"\nweight = 0.5\n')
    model = RECIPES.parent / "models" / "tiny-reader"
    told = ("--questions", world / "refiner_test.jsonl", "--limit", 2, "--prompt", "bare", "--reward", file, "--json")
    result = sleuth("eval", model, *told)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    total = found["score/rubric"]["value"] + 0.5 * found["score/citation"]["value"]
    assert found["score"]["value"] == pytest.approx(total)
    file.write_text('[[reward]]\nkind = "answer"\n')
    result = sleuth("eval", model, *told)
    assert result.exit_code == 2
    assert 'reward.0.kind = "answer" needs an env that searches' in result.stderr


def test_a_stage_names_the_stage_whose_rewards_it_measures() -> None:
    recipe = load_recipe(RECIPES / "refiner_4b_audited.toml")
    base, taught, paid, trained = (recipe.stage[at] for at in (0, 2, 3, 4))
    assert base.reward == taught.reward == trained.reward == paid.reward
    assert [judge.model for judge in trained.judges()] == ["Qwen/Qwen3.5-35B-A3B"] * 2 + [trained.audit_judge.model]
    assert [reward.judge for reward in trained.judged_again] == [trained.audit_judge] * 2


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (
            ['trained.reward="grop"'],
            ['--set trained.reward="grop": stage.3.reward = "grop": no stage of that name has rewards; there are grpo'],
        ),
        (
            ['grpo.reward.0.aggregation="mean"'],  # once, and not of each copy
            [
                '--set grpo.reward.0.aggregation="mean": stage.2.reward.0.aggregation = "mean": should be '
                '"mean_flipped" or "positive_weights" or "absolute_weights"'
            ],
        ),
        (
            ["trained.reward=[]", "trained.audit_judge='lexical'"],
            [
                "--set trained.audit_judge='lexical': stage.3.audit_judge has nothing to judge: add a reward that asks "
                "a judge, or remove it"
            ],
        ),
        (
            ['trained.audit_judge={ kind = "lexical", least_accuracy = 0.9 }'],
            [
                '--set trained.audit_judge={ kind = "lexical", least_accuracy = 0.9 }: stage.3.audit_judge is '
                f"reward.{at}.judge itself: name another judge, or remove it"
                for at in (0, 1)
            ],
        ),
    ],
)
def test_what_does_not_fit_is_one_line(overrides: list[str], lines: list[str]) -> None:
    with pytest.raises(SleuthError) as caught:
        load_recipe(RECIPES / "tiny" / "refiner.toml", overrides)
    assert list(caught.value.args) == lines


@pytest.mark.parametrize("name", ["refiner_4b_ablations", "tiny/refiner_ablations"])
def test_arms_of_the_ablations_are_paid_differently_and_measured_alike(name: str) -> None:
    recipe, runs = load_sweep(RECIPES / f"{name}.toml")
    assert len({str(run.stage[1].reward) + str(run.stage[1].credit) for run in runs.values()}) == len(runs)
    assert len({str(run.stage[0]) for run in runs.values()}) == 1
    assert len({str(run.stage[2]) for run in runs.values()}) == 1
    first = runs[recipe.table.against or ""]
    assert first.stage[2].reward == first.stage[1].reward
