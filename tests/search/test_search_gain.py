"""The gain of a search: how much likelier it made what was written after it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from shelf import Shelf

from sleuth.dialect import DIALECTS, Dialect
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.learn.models import load_model
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.env import EmptyRetriever, SearchEnv
from sleuth.search.search_gain import search_gains, search_spans
from sleuth.types import Passage, Retriever, Sampling, SleuthError, Task, Trajectory

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
TASK = Task(id="q", question="Where was Hedan Verridge born?", golden_answers=("Hinheim",), gold_passages=("1",))
PASSAGES = (
    Passage(id="1", title="Hedan Verridge", text="Hedan Verridge was from the town of Hinheim and was born in 1908."),
    Passage(id="2", title="Jarin Norworth", text="Jarin Norworth was born in Morburg."),
    Passage(id="3", title="Hinheim", text="Hinheim is a town in Tersia."),
)
TURNS = (
    "<think> birthplace of Hedan Verridge</think><search> Hedan Verridge</search>",
    "<think> birthplace of Hedan Verridge is Hinheim</think><answer> Hinheim</answer>",
)


@pytest.fixture(scope="module")
def base():
    return load_model(str(BASE), dtype="float32", device="cpu")


def played(base, dialect: Dialect, turns: tuple[str, ...], retriever: Retriever | None = None) -> Trajectory:
    _, tokenizer = base
    written = iter(turns)

    def script(text: str, sampling: Sampling) -> str:
        return next(written)

    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, script), renderer=Renderer(tokenizer), context=900, temperature=0.0, key=(0,)
    )
    env = SearchEnv(TASK, dialect, "Question: {question}\n", retriever or Shelf(*PASSAGES))
    return asyncio.run(rollout.episode(env, TASK, 0, 0)).trajectory


@torch.no_grad()
def plain_logprob(model, tokens: tuple[int, ...], last: int) -> float:
    """Of the last tokens, from the model's own full logits."""
    logprobs = model(torch.tensor([tokens])).logits[0].float().log_softmax(dim=-1)
    return sum(float(logprobs[at - 1, tokens[at]]) for at in range(len(tokens) - last, len(tokens)))


def gains(base, dialect: Dialect, *trajectories: Trajectory, removed: Literal["search", "passage"] = "search"):
    model, tokenizer = base
    return search_gains(model, Renderer(tokenizer), dialect, trajectories, removed=removed, budget=512)


@pytest.mark.parametrize("name", ["sleuth", "search_r1", "slime"])
def test_the_gain_of_a_search_is_the_log_probability_of_later_text_with_its_results_minus_without(base, name) -> None:
    """Of all tokens, and of those that the results contain."""
    model, dialect = base[0], DIALECTS[name]
    with_results, without = (
        played(base, dialect, TURNS, retriever) for retriever in (Shelf(*PASSAGES), EmptyRetriever())
    )
    [[gain]] = gains(base, dialect, with_results)
    last, segments = len(with_results.segments[-1].tokens), with_results.segments
    expected = plain_logprob(model, with_results.tokens, last) - plain_logprob(model, without.tokens, last)
    assert gain.value == pytest.approx(expected, abs=1e-3)  # a difference of two sums of some 15 fp32 values
    assert gain.answer == gain.value
    assert (gain.number, gain.passage, gain.tokens) == (0, None, last)
    assert segments[gain.search.query].text == TURNS[0]
    shown = {token for segment in segments[gain.search.first : gain.search.stop] for token in segment.tokens}
    retrieved = 0.0
    for at in range(-gain.tokens, 0):
        if with_results.tokens[at] in shown:
            one, other = (one.tokens[: len(one.tokens) + at + 1] for one in (with_results, without))
            retrieved += plain_logprob(model, one, 1) - plain_logprob(model, other, 1)
    assert gain.retrieved == pytest.approx(retrieved, abs=1e-3)
    assert gain.retrieved != gain.value


def test_the_passage_that_the_answer_uses_gains_most_and_the_others_keep_their_ranks_without_one(base) -> None:
    model, tokenizer = base
    trajectory = played(base, DIALECTS["sleuth"], TURNS)
    [found] = gains(base, DIALECTS["sleuth"], trajectory, removed="passage")
    assert [gain.passage for gain in found] == list(PASSAGES)
    gold, *others = (gain.value for gain in found)
    assert gold > 1
    assert all(gold > other for other in others)
    text = trajectory.text.replace("[2] Jarin Norworth | Jarin Norworth was born in Morburg.\n", "")
    assert "[3] Hinheim" in text
    last = len(trajectory.segments[-1].tokens)
    expected = plain_logprob(model, trajectory.tokens, last) - plain_logprob(model, tokenizer(text)["input_ids"], last)
    assert found[1].value == pytest.approx(expected, abs=1e-3)


def test_a_search_without_results_or_whose_results_were_never_shown_has_no_gain(base) -> None:
    dialect = replace(DIALECTS["sleuth"], searches=1)
    nothing = played(base, dialect, TURNS, EmptyRetriever())
    unread = played(base, dialect, (TURNS[0], TURNS[0]))  # the second is not allowed any more
    assert len(search_spans(unread)) == 1
    assert [len(of_trajectory) for of_trajectory in gains(base, dialect, nothing, unread)] == [0, 1]
    with pytest.raises(SleuthError, match="dialect of plain text"):
        gains(base, DIALECTS["chat"])
