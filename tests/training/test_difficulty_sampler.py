"""Questions that teach: which are drawn, that rates resume to the bit, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.ranks import ALONE
from sleuth.recipe import load_recipe
from sleuth.recipe.data import PlayedQuestionsRecipe
from sleuth.runs.checkpoints import load_state
from sleuth.training.difficulty_sampler import DifficultySampler, updated
from sleuth.training.infinite_sampler import InfiniteSampler
from sleuth.training.rollout_worker import Played, RolloutWorker
from sleuth.types import Episode, Group, Score, SleuthError, Task, Trajectory

Run = Callable[..., Path]


def task(name: object, *, kind: str = "", source: str = "") -> Task:
    return Task(id=str(name), question="?", golden_answers=("x",), kind=kind, source=source)


def played(one: Task, *values: float | None) -> Group:
    episodes = tuple(
        Episode(task=one, sample=sample, trajectories=(Trajectory(segments=()),)) for sample in range(len(values))
    )
    return Group(task=one, episodes=episodes, scores=tuple(Score(value=value, note="") for value in values))


def drawing(**keys: Any) -> PlayedQuestionsRecipe:
    return PlayedQuestionsRecipe(questions=Path("q.jsonl"), draw="by_difficulty", **keys)


def ids(tasks: Sequence[Task]) -> list[str]:
    return [one.id for one in tasks]


TASKS = [task(number) for number in range(10)]


def test_a_running_rate_is_the_mean_until_its_window_is_full_and_forgets_by_halves_then() -> None:
    assert updated(None, 0.5, 2) == (0.5, 1)
    assert updated((0.5, 1), 1.0, 2) == (0.75, 2)
    assert updated((0.75, 2), 0.25, 2) == (0.5, 3)
    assert updated((0.5, 3), 1.0, 32) == (0.625, 4)


def test_a_question_has_the_rate_of_its_episodes_and_missing_scores_are_left_out() -> None:
    asked, plain = task("a", kind="bridge", source="hotpot"), task("b")
    sampler = DifficultySampler([asked, plain], drawing(), seed=(0,))
    sampler.observe([played(asked, 1.0, 0.0, None, 0.0, 0.0), played(plain, None, None)])
    assert sampler.rates == {"a": (0.25, 1)}
    sampler.observe([played(asked, 1.0, 1.0), played(plain, 0.5)])
    assert sampler.rates == {"a": (0.625, 2), "b": (0.5, 1)}
    sampler.observe([played(asked, 1.0, 1.0)])  # the older ones count half
    assert sampler.rates["a"] == (0.8125, 3)
    assert sampler.kinds == {"hotpot/bridge": ((0.25 + 1 + 1) / 3, 3)}


def test_a_question_not_played_yet_waits_only_if_its_kind_is_too_easy() -> None:
    hard, easy = task("a", kind="hard", source="s"), task("b", kind="easy", source="s")
    unasked = [task("c", kind="hard", source="s"), task("d", kind="easy", source="s")]
    others = [task("e", kind="easy", source="t"), task("f", source="s")]
    sampler = DifficultySampler([hard, easy, *unasked, *others], drawing(floor=0.2), seed=(0,))
    sampler.observe([played(hard, 0.0, 0.0), played(easy, 1.0, 1.0)])
    assert [sampler.probability(one) for one in (hard, easy)] == [0.2, 0.2]
    assert [sampler.probability(one) for one in unasked] == [1.0, 0.2]
    assert [sampler.probability(one) for one in others] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("rate", "probability"), [(None, 1), (0.0, 0.2), (0.24, 0.2), (0.25, 1), (0.75, 1), (1.0, 0.2)]
)
def test_rates_at_the_bounds_are_within_them_and_an_unknown_one_is_drawn(
    rate: float | None, probability: float
) -> None:
    sampler = DifficultySampler(TASKS, drawing(rate_bounds=(0.25, 0.75), floor=0.2), seed=(0,))
    if rate is not None:
        sampler.observe([played(TASKS[3], rate)])
    assert sampler.probability(TASKS[3]) == probability


def test_until_a_rate_is_known_the_order_is_the_shuffled_one() -> None:
    sampler, shuffled = DifficultySampler(TASKS, drawing(), seed=(0, 1)), InfiniteSampler(TASKS, seed=(0, 1))
    assert sampler.peek(7) == shuffled.peek(7)
    assert sampler.take(25) == shuffled.take(25)
    assert sampler.taken == 25


def test_in_each_epoch_a_question_within_the_bounds_is_drawn_once_and_the_others_as_often_as_the_floor_says() -> None:
    tasks = [task(number) for number in range(200)]
    sampler = DifficultySampler(tasks, drawing(floor=0.25), seed=(3,))
    sampler.observe([played(one, 0.5 if int(one.id) < 20 else 0.0) for one in tasks])
    drawn = Counter[str]()
    while sampler.places[""] < 100 * 200:
        drawn.update(ids(sampler.take(1)))
    assert [drawn[str(number)] for number in range(20)] == pytest.approx([100] * 20, abs=1)
    others = [drawn[str(number)] for number in range(20, 200)]
    assert min(others) > 8  # of 100; the mean is 25, the deviation 4.3
    assert sum(others) / 180 == pytest.approx(25, abs=1.3)  # four deviations of the mean


@given(
    st.lists(st.sampled_from([None, 0.0, 0.05, 0.5, 0.95, 1.0]), min_size=2, max_size=12),
    st.sampled_from([0.3, 0.6, 1.0]),
    st.integers(0, 50),
    st.integers(0, 20),
)
def test_what_is_drawn_is_what_a_plain_walk_keeps(
    rates: list[float | None], floor: float, seed: int, before: int
) -> None:
    tasks = [task(number) for number in range(len(rates))]
    sampler = DifficultySampler(tasks, drawing(floor=floor), seed=(seed,))
    sampler.take(before)
    sampler.observe([played(one, rate) for one, rate in zip(tasks, rates, strict=True)])
    kept, place = [], sampler.places[""]
    while len(kept) < 15:
        epoch, at = divmod(place, len(rates))
        one = random.Random(f"order {(seed, epoch)}").sample(range(len(rates)), len(rates))[at]
        rate = rates[one]
        if rate is None or 0.1 <= rate <= 0.9 or random.Random(f"floor {(seed,)} {place}").random() < floor:
            kept.append(str(one))
        place += 1
    assert ids(sampler.take(15)) == kept
    assert sampler.places == {"": place}


def test_sources_are_drawn_by_their_weights_whatever_their_size() -> None:
    tasks = [task(number, source="large" if number < 90 else "small") for number in range(100)]
    sampler = DifficultySampler(tasks, drawing(mix={"small": 3, "large": 1}), seed=(0,))
    drawn = Counter(one.source for one in sampler.take(2000))
    assert drawn["small"] / 2000 == pytest.approx(0.75, abs=0.04)
    small = [one for one in sampler.take(100) if one.source == "small"][:10]
    assert len(set(ids(small))) > 5  # each source has its own epochs


@pytest.mark.parametrize("mix", [None, {"a": 1.0, "b": 2.0}])
def test_a_sampler_goes_on_from_its_state_as_if_it_had_never_stopped(mix: dict[str, float] | None) -> None:
    tasks = [task(number, kind=f"k{number % 3}", source="ab"[number % 2]) for number in range(30)]
    draws = random.Random(5)
    scores = [[[draws.choice([0.0, 0.5, 1.0]) for _ in range(4)] for _ in range(4)] for _ in range(30)]

    def steps(sampler: DifficultySampler, begin: int, end: int) -> list[str]:
        drawn: list[str] = []
        for step in range(begin, end):
            taken = sampler.take(4)
            sampler.observe([played(one, *values) for one, values in zip(taken, scores[step], strict=True)])
            drawn += ids(taken)
        return drawn

    whole = DifficultySampler(tasks, drawing(mix=mix), seed=(0,))
    expected = steps(whole, 0, 30)
    half = DifficultySampler(tasks, drawing(mix=mix), seed=(0,))
    first = steps(half, 0, 13)
    state = half.state_dict()
    half.take(9)  # drawn ahead; the state does not know of it
    half.observe([played(tasks[0], 1.0)])
    second = DifficultySampler(tasks, drawing(mix=mix), seed=(0,), state=state)
    assert first + steps(second, 13, 30) == expected
    assert second.state_dict() == whole.state_dict()


def test_a_step_played_ahead_knows_the_rates_that_a_run_that_goes_on_would_know() -> None:
    tasks = [task(number) for number in range(12)]

    class Worker(RolloutWorker):
        async def _play(self, step: int) -> Played:
            taken = self.order.take(4)
            return Played(groups=[played(one, 0.0, 0.0) for one in taken], replaced=set(), figures={})

    def worker(state: dict[str, Any] | None, *, lag: int) -> Worker:
        stage = SimpleNamespace(engine=SimpleNamespace(max_policy_lag=lag), last_step=9)
        order = DifficultySampler(tasks, drawing(floor=0.5), seed=(2,), state=state)
        unused: dict[str, Any] = dict.fromkeys(("engine", "renderer", "setting", "reward", "judge_pool"))
        context = cast(Any, SimpleNamespace(ranks=ALONE))
        return Worker(stage=cast(Any, stage), order=order, context=context, **unused)

    whole, drawn, states = worker(None, lag=1), [], []
    for step in range(1, 9):
        drawn.append(ids([group.task for group in whole.play(step).groups]))
        whole.wait()
        states.append(whole.order_state)
    for step in range(1, 8):
        for lag in (0, 1):
            continued = worker(states[step - 1], lag=lag)
            assert ids([group.task for group in continued.play(step + 1).groups]) == drawn[step]
            continued.wait()
            assert continued.order_state == states[step]


MIXED = ('stage.1.data.draw="by_difficulty"', "stage.1.data.floor=0.3", "stage.1.data.rate_bounds=[0.2, 0.8]")
BRIEF = ("stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.prompts_per_step=2", "stage.1.samples_per_prompt=4")


def test_a_run_by_difficulty_that_is_stopped_goes_on_as_if_never_stopped(
    run: Run, recipe_file: Path, tmp_path: Path
) -> None:
    overrides = (*MIXED, *BRIEF, "stage.1.steps=2", "stage.1.data.limit=3", "stage.1.replace_no_signal=1")
    whole = run(recipe_file, tmp_path / "whole", *overrides)
    run(recipe_file, tmp_path / "parts", *overrides, "stage.1.stop_after=1")
    continued = run(recipe_file, tmp_path / "parts", *overrides)
    assert (continued / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    found = [load_state(last) for last in (whole, continued)]
    assert found[0]["draws"] == found[1]["draws"]
    assert found[0]["draws"]["rates"]
    assert found[0]["draws"]["kinds"].keys() <= {"world/one_hop", "world/two_hop"}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("stage.1.data.draw=by_difficulty", "stage.1.data.rate_bounds=[0.9, 0.1]"),
            "rate_bounds = [0.9, 0.1] leaves no rate between them; put the lower bound first",
        ),
        (("stage.1.data.floor=0.5",), 'floor has no effect with draw = "shuffled"; set draw = "by_difficulty"'),
        (("stage.1.data.mix={ world = 1.0 }",), 'mix has no effect with draw = "shuffled"'),
        (("stage.1.data.draw=by_difficulty", "stage.1.data.floor=0"), "floor = 0: should be greater than 0"),
        (("stage.1.data.draw=by_luck",), 'draw = "by_luck": should be "shuffled" or "by_difficulty"'),
        (("stage.0.data.draw=by_difficulty",), "stage.0.data.draw is no key here"),
    ],
)
def test_what_cannot_be_drawn_is_refused(recipe_file: Path, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(SleuthError) as caught:
        load_recipe(recipe_file, overrides)
    [line] = caught.value.args
    assert problem in line


def test_a_mix_names_the_sources_of_the_questions_and_all_of_them() -> None:
    tasks = [task(1, source="nq"), task(2, source="nq"), task(3, source="hotpot")]
    with pytest.raises(SleuthError) as caught:
        DifficultySampler(tasks, drawing(mix={"nq": 1.0, "hotpott": 1.0}), seed=(0,))
    assert caught.value.args == (
        "data.mix.hotpott: no question of q.jsonl has this data_source; there are 'nq', 'hotpot'",
        "data.mix has no weight for data_source 'hotpot', that of 1 questions of q.jsonl; add one",
    )


def test_an_unknown_source_is_named_before_the_first_step(run: Run, recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match=r"stage.*grpo.*data.mix.wiki: no question of .* has this data_source"):
        run(recipe_file, tmp_path / "run", *MIXED, 'stage.1.data.mix={"world"=1.0, "wiki"=2.0}')
    assert not (tmp_path / "run" / "rollouts").exists()
