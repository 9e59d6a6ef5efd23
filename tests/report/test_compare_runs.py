"""Arms from runs, checkpoints and files, and what a comparison of them says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from refusals import line_of
from synthetic_run import evaluation_file, record, write_run, write_suite

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, RewardPart, RewardSpec, text_sha256
from sleuth.report.arms import read_arms
from sleuth.report.comparison import Comparison, compare
from sleuth.report.page import render
from sleuth.report.run_files import read_run

CARD = ProtocolCard(
    dialect=DIALECTS["sleuth"],
    prompt="mine",
    prompt_text="Asked: {question}\n",
    prompt_sha256=text_sha256("Asked: {question}\n"),
    context=200,
    scorer="strict",
    sleuth_version="0",
)


def write_file(file: Path, skill: float, questions: range = range(20), seed: int = 0, **more: Any) -> Path:
    """An evaluation of made-up questions; the higher the skill, the more of them are right."""
    records = [record(random.Random(1000 * seed + number), number, skill) for number in questions]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(evaluation_file(file.stem, records) | more), encoding="utf-8")
    return file


def protocol(card: ProtocolCard) -> dict[str, Any]:
    return card.model_dump(mode="json") | {"hash": card.hash}


def compared(*places: object) -> Comparison:
    return compare(read_arms([str(place) for place in places]))


def complaint(*places: object) -> str:
    return line_of(compared, *places)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ({"win_rate": {"value": 0.6}, "records": [{"id": "t", "question": ""}]}, "compares two models already"),
        ({"records": [{"id": "t", "thoughts": ["so"], "nll": {}}]}, "holds thoughts about texts"),
        ({"records": [{"id": "p", "right": [True, False]}]}, "holds solved problems"),
    ],
)
def test_what_is_no_evaluation_of_questions_names_the_verb_that_compares_it(
    tmp_path: Path, contents: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"name": "a", "model": "m"} | contents))
    shown = complaint(tmp_path / "a.json", write_file(tmp_path / "b.json", 0.5))
    assert said in shown
    assert "`sleuth sweep FILE`" in shown


def test_scores_and_their_parts_are_compared_and_lead(tmp_path: Path) -> None:
    def scored(name: str, value: float, reward: str = "f") -> Path:
        records = [
            record(random.Random(at), at, 0.5) | {"verdict": "score", "score": value, "score_f/turns": 3.0}
            for at in range(20)
        ]
        led = {"headline": ["score", "score_f/turns"], "reward": reward}
        file = write_file(tmp_path / f"{name}.json", 0.5, records=records, **led)
        return file

    found = compared(scored("a", 1.25), scored("b", 1.75))
    assert found.headlines == ["Score of b is above that of a: +0.500 [+0.500, +0.500]."]
    assert list(found.figures)[:3] == ["score", "score_f/turns", "em"]
    assert found.modes["a"]["scored"] == 20
    other = compared(scored("a", 1.25), scored("b", 1.75, reward="g"))
    assert "score" not in other.figures
    assert "Scores are not compared: they were computed by different rewards." in other.notes
    plain = compared(scored("a", 1.25), write_file(tmp_path / "c.json", 0.9))
    assert plain.headlines[0].startswith("Exact match of c ")


def test_an_unfinished_run_is_compared_by_the_stage_that_all_have_reached(tmp_path: Path) -> None:
    young, done = (write_run(tmp_path / name, questions=10) for name in ("young", "done"))
    (young / "eval/trained.json").unlink()
    for places in ((young, done), (done, young), (f"all={done},{young}", write_run(tmp_path / "more", questions=10))):
        found = compared(*places)
        assert {member.file.stem for arm in found.arms for member in arm.members} == {"base"}
        [note] = [note for note in found.notes if "`trained`" in note]
        assert note.endswith("has not measured `trained` yet and is compared by `base`, as all are.")
    assert found.headlines[0].endswith("+0.000 [+0.000, +0.000].")


def test_models_of_different_stages_of_training_are_said_to_be(tmp_path: Path) -> None:
    base = write_file(tmp_path / "a/base.json", 0.1, after=[])
    trained = write_file(tmp_path / "b/trained.json", 0.9, after=["sft", "grpo"])
    told = "Careful: these are models of different stages of training: base before any, trained after sft and grpo."
    assert told in compared(base, trained).notes
    beside = write_file(tmp_path / "a/trained.json", 0.9, after=["grpo"])
    for places in ((base, beside), (beside, trained), (base, write_file(tmp_path / "c/of_before.json", 0.9))):
        assert not any("stages of training" in note for note in compared(*places).notes)


def test_an_evaluation_of_weights_that_are_gone_is_neither_compared_nor_reported(tmp_path: Path) -> None:
    run, other = (write_run(tmp_path / name, questions=10) for name in ("run", "other"))
    model = run / "checkpoints/step-000060"
    (model / "model.safetensors").write_bytes(b"new")
    stale = {"model": "moved/checkpoints/step-000060", "model_sha256": "0" * 64}
    write_file(run / "eval/trained.json", 0.9, range(10), **stale)
    found = compared(run, other)
    told = f"Left out: {run / 'eval/trained.json'} is of other weights than {model} has now; `sleuth train` measures it"
    assert [note for note in found.notes if note.startswith(told)]
    assert {arm.first.file.stem for arm in found.arms} == {"base"}
    assert "is of other weights than" in render(read_run(run))
    assert "holds no evaluation of this checkpoint" in complaint(model, other)
    begun = "runs/another/checkpoints/step-000060"  # the base model of a run may be a checkpoint of another one
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("tiny/base", begun))
    write_file(run / "eval/base.json", 0.1, range(10), **(stale | {"model": begun}))
    assert list(read_run(run).evaluations) == ["base"]


def test_a_checkpoint_is_the_evaluation_that_was_made_of_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", questions=4)
    write_file(run / "eval/midway.json", 0.5, model="elsewhere/checkpoints/step-000060")
    [arm, _] = read_arms([str(run / "checkpoints/step-000060"), str(run / "eval/base.json")])
    assert (arm.name, arm.first.file) == ("step-000060", run / "eval/midway.json")
    (run / "checkpoints/step-000030").mkdir()
    assert "holds no evaluation of this checkpoint" in complaint(run / "checkpoints/step-000030", run)
    write_file(run / "eval/again.json", 0.5, model="checkpoints/step-000060")
    assert "evaluated more than once; give the file" in complaint(run / "checkpoints/step-000060", run)


def test_an_arm_of_several_runs_has_the_name_it_is_given(tmp_path: Path) -> None:
    a, b, c = (write_file(tmp_path / f"{name}.json", 0.5, seed=seed) for seed, name in enumerate("abc"))
    arms = read_arms([f"plain={a},{b}", str(c)])
    assert [(arm.name, len(arm.members)) for arm in arms] == [("plain", 2), ("c", 1)]
    assert (tmp_path / "x=y").mkdir() is None
    assert "neither a run nor a checkpoint" in complaint(tmp_path / "x=y", c)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    a, b = (write_file(tmp_path / f"{name}.json", 0.5) for name in "ab")
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "recipe.txt").write_text("")
    young = write_run(tmp_path / "young")
    for places, message in [
        ((a,), "nothing to compare with"),
        ((young,), "nothing to compare with"),
        ((a, young), "holds no evaluation yet"),
        ((a, a), "is given twice"),
        ((f"x={a}", f"x={b}"), "x: two arms have this name"),
        ((f"x={a},", b), "an arm is a name and its runs"),
        ((a, tmp_path / "nowhere"), "no such run, checkpoint or evaluation file"),
        ((a, tmp_path / "empty.json"), "holds no answered questions"),
        ((a, tmp_path / "recipe.txt"), "not an evaluation file (.json)"),
        ([f"n{number}={a}" for number in range(9)], "9 sides are too many"),
    ]:
        assert message in complaint(*places)


def test_questions_that_only_one_side_has_are_left_out_counted_and_said(tmp_path: Path) -> None:
    a, b = write_file(tmp_path / "a.json", 0.2), write_file(tmp_path / "b.json", 0.9, range(5, 22))
    found = compared(a, b)
    assert len(found.matched.questions) == 15
    assert found.matched.left_out == {"a": 5, "b": 2}
    assert found.figures["em"].levels["a"].n == 15
    assert "Left out: 5 questions of a that not all answered." in found.notes


def test_an_id_that_stands_for_another_question_is_no_pair(tmp_path: Path) -> None:
    a, b = write_file(tmp_path / "a.json", 0.2), write_file(tmp_path / "b.json", 0.9)
    told = json.loads(b.read_text())
    told["records"][0]["question"] = "another"
    told["records"][1]["golden_answers"] = ["another"]
    b.write_text(json.dumps(told))
    found = compared(a, b)
    assert (len(found.matched.questions), found.matched.reworded) == (18, ["q0", "q1"])
    assert any(line.startswith("Left out: 2 ids shared by all, with another wording") for line in found.notes)
    write_file(b, 0.9, range(30, 40))
    assert "a and b have no question in common (they share no id)" in complaint(a, b)


def test_several_runs_an_arm_are_measured_over_runs_and_questions(tmp_path: Path) -> None:
    files = [write_file(tmp_path / f"{seed}.json", 0.2 + 0.6 * (seed > 2), seed=seed) for seed in range(6)]
    plain, credit = (",".join(map(str, three)) for three in (files[:3], files[3:]))
    found = compared(f"plain={plain}", f"credit={credit}")
    em = found.figures["em"].differences["plain", "credit"]
    assert em is not None
    assert em.test == "student"
    assert sum(found.modes["plain"].values()) == 60
    assert "Intervals are over runs and questions (plain 3, credit 3 runs)." in found.notes
    alone = compared(f"plain={plain}", files[3])
    assert any("3 is one run, whose variation by seed is unknown" in line for line in alone.notes)


def test_protocols_that_differ_are_told_in_words(tmp_path: Path) -> None:
    other = CARD.model_copy(update={"dialect": DIALECTS["search_r1"], "context": 512})
    a = write_file(tmp_path / "a.json", 0.5, protocol=protocol(CARD))
    b = write_file(tmp_path / "b.json", 0.5, protocol=protocol(other), temperature=1.0)
    found = compared(a, b)
    assert "dialect.name: a `sleuth`, b `search_r1`" in found.protocols
    assert "context: a 200, b 512" in found.protocols
    assert "Temperatures differ: a 0.0, b 1.0." in found.notes
    assert compared(a, write_file(tmp_path / "c.json", 0.5, protocol=protocol(CARD))).protocols == [
        "All were evaluated under the same protocol."
    ]
    assert compared(a, write_file(tmp_path / "d.json", 0.5)).protocols == [
        "d: the file does not record the protocol of the evaluation."
    ]


def test_rewards_that_differ_are_read_off_the_checkpoints(tmp_path: Path) -> None:
    files = []
    for name, weight in (("a", 1.0), ("b", 0.5)):
        part = RewardPart(kind="answer", scorer="strict", scorer_version=1, weight=weight)
        (tmp_path / "models" / name).mkdir(parents=True)
        CARD.model_copy(update={"reward": RewardSpec(parts=(part,))}).write(tmp_path / "models" / name)
        model = str(tmp_path / "models" / name)
        files.append(write_file(tmp_path / f"{name}.json", 0.5, protocol=protocol(CARD), model=model))
    assert compared(*files).protocols == ["reward.answer.weight: a 1.0, b 0.5"]


def test_recipes_are_compared_key_by_key_and_seeds_are_no_difference(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, questions=4) for name in "abc"]
    recipe = (runs[1] / "recipe.toml").read_text()
    (runs[1] / "recipe.toml").write_text(recipe.replace("0.001", "0.003").replace("seed = 7", "seed = 8"))
    assert compared(runs[0], runs[1]).recipes == {"stage.1.learning_rate": {"a": "0.001", "b": "0.003"}}
    assert compared(runs[0], runs[2]).recipes == {}
    mixed = compared(f"x={runs[0]},{runs[1]}", runs[2])
    assert "Careful: the runs of x differ by more than their seed: stage.1.learning_rate." in mixed.notes


SKILLS = {"nq": 0.2, "hotpotqa": 0.6, "musique": 0.4}


def write_suites(folder: Path, trained: dict[str, float], seed: int = 1) -> Path:
    """A run of a full-size recipe: both its evaluations are of a suite."""
    run = write_run(folder)
    write_suite(run / "eval/base.json", SKILLS)
    write_suite(run / "eval/trained.json", trained, seed=seed, model="checkpoints/step-000060")
    return run


def test_suites_are_paired_set_by_set_and_their_mean_is_that_of_their_file(tmp_path: Path) -> None:
    run = write_suites(tmp_path / "run", {name: 0.9 for name in SKILLS})
    found = compared(run)
    assert found.names == ["base", "trained"]
    assert {name: len(questions) for name, questions in found.matched.sets.items()} == dict.fromkeys(SKILLS, 12)
    told = json.loads((run / "eval/trained.json").read_text())
    for key in ("em", "sub_match", "f1", "searches_mean"):
        assert found.figures[key].levels["trained"].as_json() == told[key]
        for name in SKILLS:
            assert found.compared[key][name].levels["trained"].as_json() == told["sets"][name][key]
    apart = [found.compared["em"][name].differences["base", "trained"] for name in SKILLS]
    mean = found.figures["em"].differences["base", "trained"]
    assert mean is not None
    assert mean.measured.value == pytest.approx(sum(one.measured.value or 0 for one in apart if one) / 3)
    assert [one and one.test for one in [*apart, mean]] == ["mcnemar"] * 3 + ["sign_flip"]
    assert "as the mean over 3 sets: +" in found.headlines[0]
    checkpoint = compared(run / "eval/base.json", run / "checkpoints/step-000060")
    assert checkpoint.figures["em"].differences["base", "step-000060"] == mean


def test_two_runs_of_suites_are_compared_with_their_curves_and_json_has_all_of_it(tmp_path: Path) -> None:
    plain = write_suites(tmp_path / "plain", SKILLS)
    weighted = write_suites(tmp_path / "weighted", {name: 0.9 for name in SKILLS}, seed=2)
    found = compared(plain, weighted)
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert set(told["sets"]) == set(SKILLS)
    assert told["sets"]["nq"]["questions"] == 12
    assert told["sets"]["nq"]["em"]["differences"]["plain -> weighted"]["test"] == "mcnemar"
    assert told["figures"]["em"]["differences"]["plain -> weighted"]["n"] == 36
    reward = told["curves"]["grpo"]["Reward"]
    assert (len(reward["steps"]), list(reward["arms"])) == (60, ["plain", "weighted"])
    files = compared(plain / "eval/trained.json", weighted / "eval/trained.json")
    assert [[*one.levels.values()] for one in files.figures.values()] == [
        [*one.levels.values()] for one in found.figures.values()
    ]
    assert [*compared(plain / "eval/trained@nq.json", weighted / "eval/trained.json").compared["em"]] == ["nq", ""]


def test_what_differs_between_suites_is_a_line_each_all_at_once(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / name) / "eval" for name in "ab")
    other = CARD.model_copy(update={"scorer": "slime", "context": 512})
    write_suite(a / "trained.json", SKILLS, protocol=protocol(CARD))
    write_suite(b / "trained.json", {"nq": 0.2, "hotpotqa": 0.6, "popqa": 0.1}, questions=14, protocol=protocol(other))
    told = json.loads((b / "trained@nq.json").read_text())
    told["records"][3]["question"] = "another"
    (b / "trained@nq.json").write_text(json.dumps(told))
    found = compared(a.parent, b.parent)
    assert list(found.matched.sets) == ["nq", "hotpotqa"]
    assert found.notes[:6] == [
        "23 questions of 2 sets answered by all, paired by id within each set.",
        "Figures over all are unweighted means over the sets, with intervals over the questions within them.",
        "Left out: the set musique, which was not asked of b.",
        "Left out: the set popqa, which was not asked of a.",
        "Left out: 4 questions of b that not all answered.",
        "Left out: 1 id shared by all, with another wording or other golden answers (nq/q3).",
    ]
    assert "scorer: a `strict`, b `slime`" in found.protocols
    assert "context: a 200, b 512" in found.protocols
    (a / "trained@nq.json").unlink()
    (b / "trained.json").write_text("{")
    shown = complaint(a / "trained.json", b / "trained.json", b / "base.json")
    for said in ("beside it should be trained@nq.json, with the answers", "trained.json: is not JSON", "no such run"):
        assert said in shown


def test_evaluations_of_a_run_that_ask_no_questions_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", questions=6)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text() + '\n[[stage]]\nkind = "win_rate"\nname = "against_base"\n')
    (run / "eval/against_base.json").write_text(json.dumps({"win_rate": {"value": 0.6}, "records": []}))
    assert compared(run).names == ["base", "trained"]
