"""A run that learns to think: what is played, paid, kept and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from continuations import BASE, first_groups, metrics_of, require_the_same_after_a_stop
from refusals import refused

from sleuth.cli.pipeline import require_inputs
from sleuth.episodes.protocol import ProtocolCard
from sleuth.recipe import load_recipe
from sleuth.types import SleuthError

Run = Callable[..., Path]
RECIPE = """
name = "thinks"
model = "{model}"
seed = 5

[[stage]]
kind = "grpo"
name = "gain"
steps = 4
prompts_per_step = 3
samples_per_prompt = 4
learning_rate = 1e-3
context = 400
save_every = 2
probe_prompts = 2
data = {{ kind = "places", texts = "{texts}", part = "rl", suffix_tokens = 8, limit = 20 }}
env = {{ kind = "thought", thought_tokens = 16 }}
reward = [{{ kind = "gain", clip = 5.0 }}]
loss = {{ setting = "dr_grpo", constant = 16, old_logprobs = "learner" }}
"""
SUFFIX = ["stage.0.env.suffix_tokens=5", "stage.0.env.stops=['.']"]


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    file = tmp_path / "thinks.toml"
    file.write_text(RECIPE.format(model=BASE, texts=world / "text_train.jsonl"))
    return file


def test_thoughts_are_paid_by_their_gain_and_their_signs_are_told(run: Run, recipe: Path, tmp_path: Path) -> None:
    last = run(recipe, tmp_path / "run")
    rows = metrics_of(tmp_path / "run")
    signs = {"thought_tokens_mean", "closed", "empty_thoughts", "thought_artefacts", "copied", "repeated"}
    assert all(row.keys() >= {"gain", "swapped_gain", "blank_nll", *signs} for row in rows)
    groups = first_groups(tmp_path / "run")
    gains = [score.parts["gain"] for group in groups for score in group.scores]
    assert rows[0]["gain"] == pytest.approx(sum(gains) / len(gains))
    for group in groups:
        texts = {episode.trajectory.segments[0].text for episode in group.episodes}
        assert texts == {group.task.question}
    assert ProtocolCard.read(last) is None  # it was asked nothing


def test_n_steps_and_then_m_are_the_same_bytes_as_all_of_them(run: Run, recipe: Path, tmp_path: Path) -> None:
    require_the_same_after_a_stop(run, recipe, tmp_path)


def test_a_judge_pays_what_is_written_behind_a_thought(run: Run, recipe: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "run", *SUFFIX, "stage.0.reward=[{kind='suffix', judge='ending'}]", "stage.0.steps=2")
    [row, _] = metrics_of(tmp_path / "run")
    assert row["suffix"] == row["right"] == row["reward_mean"]
    assert "gain" not in row
    for group in first_groups(tmp_path / "run"):
        for episode in group.episodes:
            assert episode.trajectory.segments[-1].author == "policy"
            assert len(episode.trajectory.segments[-1].tokens) <= 5


def test_a_model_that_judges_sees_no_thought_and_may_be_silent(run: Run, recipe: Path, tmp_path: Path) -> None:
    def answered(body: dict[str, Any]) -> tuple[int, object]:
        return says(scored(len(part(body, "answer")) % 2))

    with ChatServer(answer=answered).running() as server:
        judge = f"{{kind='http', urls=['{server.url}'], model='{MODEL}'}}"
        one = [*SUFFIX, f"stage.0.reward=[{{kind='suffix', judge={judge}}}]", "stage.0.steps=1"]
        run(recipe, tmp_path / "run", *one, "stage.0.probe_prompts=0")
        asked = [json.dumps(body) for body in server.asked]
    [row] = metrics_of(tmp_path / "run")
    assert row["judge_asked"] == len(asked) > 0
    thoughts = {
        thought
        for group in first_groups(tmp_path / "run")
        for episode in group.episodes
        if len(thought := episode.trajectory.segments[2].text.removesuffix("</think>").strip()) > 20
        and thought not in group.task.question  # a few words of the text itself give nothing away
    }
    assert thoughts
    assert not any(thought in body for thought in thoughts for body in asked)
    assert not any("<think>" in body for body in asked)


# -- what is refused before the first step -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["stage.0.reward=[{kind='answer'}]"], r'reward\.0\.kind = "answer" does not fit env\.kind = "thought"'),
        (["stage.0.reward=[{kind='suffix', judge='ending'}]"], r"env\.suffix_tokens"),
        (["stage.0.replace_no_signal=1"], "replace_no_signal = 1 needs scores while episodes are played"),
        (["stage.0.reward=[{kind='gain'}, {kind='gain'}]"], "twice"),
        (["stage.0.reward.0.decay=0.9"], r"a gain is by the weights at the start of the stage"),
        (["stage.0.data={questions='q.jsonl'}"], r"stage\.0\.data\.questions is no key here"),
        (["stage.0.data={questoins='q.jsonl'}"], r"stage\.0\.data\.questoins is no key here"),
        (["stage.0.data={kind='rows', questions='q'}"], r'should be one of "text", "python", "places"'),
        (["stage.0.env={kind='refine'}"], r'data\.kind = "places" needs env\.kind = "thought"'),
        (["stage.0.env.thought_tokens=400"], r"env\.thought_tokens = 400 leaves no room"),
        (["stage.0.credit={kind='search_gain', penalty=1.0}"], "has neither; remove it"),
        (["stage.0.context=60"], "do not fit in context = 60; raise context, lower env.thought_tokens"),
        (["stage.0.data.least_before=5000"], "no document of the part has a thought with 5000 tokens before it"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(recipe: Path, overrides: list[str], said: str) -> None:
    assert re.search(said, refused(recipe, *overrides))


def test_texts_without_what_a_stage_needs_are_refused_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    require_inputs(load_recipe(recipe))
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"id": "d", "text": " Ada was born in Tarn.", "thoughts": [{"at": 16, "text": " in Tarn"}]}\n')
    ending = "stage.0.reward=[{kind='suffix', judge='ending'}]"
    reason = refused(recipe, *SUFFIX, ending, f"stage.0.data={{kind='places', texts='{bare}'}}")
    assert "text 'd' has no golden_answers" in reason
    text = recipe.read_text().replace('kind = "places", texts', "questions")
    recipe.write_text(text.replace(', part = "rl", suffix_tokens = 8', ""))
    with pytest.raises(SleuthError, match=r'data\.kind is missing: env\.kind = "thought" reads texts'):
        load_recipe(recipe)
