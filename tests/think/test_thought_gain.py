"""What a thought gains, by hand and against the plain padded computation; and that thoughts alone are trained by it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from continuations import BASE, continued, plain_nll

from sleuth.learn.batch import batch_of_groups
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.recipe import load_recipe
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.render import Renderer
from sleuth.think.env import thinking_of
from sleuth.think.tables import GainRecipe
from sleuth.think.thought_gain import GainScorer
from sleuth.think.thoughts import THINK, tag_piece
from sleuth.training.grpo import advantages_of
from sleuth.training.learning import policy_loss_of
from sleuth.types import Episode, Group, Piece, Score, Segment, Trajectory

BEFORE, BEHIND = " Tamton is a town in Osmark. The region of Tamton is", " Osmark."
STAGE = """
name = "gains"
model = "m"
[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 200
data = { kind = "places", texts = "t.jsonl" }
env = { kind = "thought" }
reward = [{ kind = "gain" }]
loss = { setting = "dr_grpo", constant = 48, old_logprobs = "learner" }
"""


@pytest.fixture(scope="module")
def base():
    return load_model(str(BASE), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def renderer(base) -> Renderer:
    return Renderer(base[1])


@pytest.fixture
def stage(tmp_path: Path) -> GrpoRecipe:
    file = tmp_path / "gains.toml"
    file.write_text(STAGE)
    [found] = load_recipe(file).stage
    assert isinstance(found, GrpoRecipe)
    return found


def tags(renderer: Renderer) -> tuple[Piece, Piece]:
    return tag_piece(THINK.open, renderer), tag_piece(THINK.close, renderer)


def scorer(base, renderer: Renderer, **recipe: object) -> GainScorer:
    asked = GainRecipe.model_validate({"kind": "gain", "clip": None, **recipe})
    return GainScorer(asked, base[0], tags(renderer))


def segment(author, text: str, renderer: Renderer) -> Segment:
    return renderer.render(Piece(text=text, author=author))


def group(renderer: Renderer, *thoughts: str, before: str = BEFORE, behind: str = BEHIND, closed: bool = True) -> Group:
    """Thoughts that end with their tag were closed by the policy; the environment closes others, where `closed`."""
    source = {at: segment("source", text, renderer) for at, text in enumerate((before, behind))}
    task = continued(source[0], source[1], "Osmark")

    def episode(sample: int, thought: str) -> Episode:
        told = [source[0], segment("env", THINK.open, renderer), segment("policy", thought, renderer)]
        if closed and not thought.endswith(THINK.close):
            told.append(segment("env", THINK.close, renderer))
        return Episode(task=task, sample=sample, trajectories=(Trajectory(segments=tuple(told)),))

    episodes = tuple(episode(*of) for of in enumerate(thoughts))
    return Group(task=task, episodes=episodes, scores=(Score(value=0.0),) * len(episodes))


def nll(model, renderer: Renderer, story: str, behind: str = BEHIND) -> float:
    """Nats a token of the end of a story; each of its pieces is encoded by itself."""
    told = [renderer.render(Piece(text=part, author="teacher")).tokens for part in (*story.split("|"), behind)]
    return plain_nll(model, [token for part in told[:-1] for token in part], told[-1])


THOUGHTS = (" Tamton lies in Osmark", " Tamton lies in Ulmark", " so")


@pytest.mark.parametrize("budget", [24, 512])  # however the stories are packed
def test_a_gain_is_the_log_probability_of_the_true_suffix_with_the_thought_minus_with_an_empty_one(
    base, renderer, budget
) -> None:
    [found], figures = scorer(base, renderer).score([group(renderer, *THOUGHTS)], budget=budget)
    blank = nll(base[0], renderer, f"{BEFORE}|<think>|</think>")
    nlls = [nll(base[0], renderer, f"{BEFORE}|<think>|{thought}|</think>") for thought in THOUGHTS]
    assert [score.value for score in found.scores] == pytest.approx([blank - one for one in nlls], abs=1e-5)
    assert [score.parts["gain"] for score in found.scores] == [score.value for score in found.scores]
    assert (found.scores[0].value or 0) > (
        found.scores[1].value or 0
    )  # to a base that reads, the right fact is worth more
    assert figures["gain"] == pytest.approx(blank - sum(nlls) / 3, abs=1e-5)
    assert figures["blank_nll"] == pytest.approx(blank, abs=1e-5)
    assert figures["swapped_gain"] is None  # there is no other group to take a thought from
    [empty], _ = scorer(base, renderer).score([group(renderer, "", "</think>")], budget=budget)
    assert [score.value for score in empty.scores] == [0.0, 0.0]


def test_a_foreign_thought_is_that_of_the_next_group(base, renderer) -> None:
    other = " Vogrun is a town in Ulmark. The region of Vogrun is"
    groups = [
        group(renderer, THOUGHTS[0]),
        group(renderer, " Vogrun is in Ulmark</think>", before=other, behind=" Ulmark."),
    ]
    _, figures = scorer(base, renderer).score(groups, budget=512)
    swapped = [
        nll(base[0], renderer, f"{BEFORE}|<think>|</think>")
        - nll(base[0], renderer, f"{BEFORE}|<think>| Vogrun is in Ulmark</think>"),
        nll(base[0], renderer, f"{other}|<think>|</think>", " Ulmark.")
        - nll(base[0], renderer, f"{other}|<think>|{THOUGHTS[0]}|</think>", " Ulmark."),
    ]
    assert figures["swapped_gain"] == pytest.approx(sum(swapped) / 2, abs=1e-5)


def test_gains_are_clipped_where_they_are_paid_and_told_as_they_are(base, renderer) -> None:
    thoughts = group(renderer, *THOUGHTS)
    [free], _ = scorer(base, renderer).score([thoughts], budget=512)
    [bound], _ = scorer(base, renderer, clip=0.05, weight=3.0).score([thoughts], budget=512)
    for whole, cut in zip(free.scores, bound.scores, strict=True):
        assert whole.value is not None
        assert cut.value == pytest.approx(3 * max(-0.05, min(0.05, whole.value)))
        assert cut.parts["gain"] == whole.parts["gain"]


def test_an_unclosed_thought_is_worth_no_more_than_an_empty_one_or_its_worst_sibling(base, renderer) -> None:
    own = scorer(base, renderer)
    closed, open_ = group(renderer, *THOUGHTS[:2]), group(renderer, " Tamton", closed=False)
    mixed = replace(closed, episodes=(*closed.episodes, *open_.episodes), scores=(Score(value=0.0),) * 3)
    [found], _ = own.score([mixed], budget=512)
    gains = [score.value or 0.0 for score in found.scores]
    assert gains[2] == min(0.0, *gains[:2])
    assert found.scores[2].note == "the thought was never closed"
    assert "gain" not in found.scores[2].parts
    [alone], figures = own.score([open_], budget=512)
    assert (alone.scores[0].value, figures["gain"], figures["blank_nll"]) == (0.0, None, None)


def test_a_suffix_that_was_written_has_no_part_in_a_gain(base, renderer) -> None:
    bare, own = group(renderer, *THOUGHTS), scorer(base, renderer)
    written = segment("policy", " Ulmark.", renderer)
    stories = [Trajectory(segments=(*one.trajectory.segments, written)) for one in bare.episodes]
    assert thinking_of(stories[0], THINK.close).suffix is not None
    episodes = zip(bare.episodes, stories, strict=True)
    longer = replace(bare, episodes=tuple(replace(one, trajectories=(story,)) for one, story in episodes))
    (one, figures), (other, others) = (own.score([told], budget=512) for told in (bare, longer))
    assert (one[0].scores, figures) == (other[0].scores, others)


# -- the gradient ------------------------------------------------------------------------------------------------------


def gradient_of(base, scored: Group, advantages: list[float | None], stage: GrpoRecipe) -> torch.Tensor:
    policy = Policy(copy.deepcopy(base[0]), Optimisation(name="adamw", steps=1, learning_rate=1e-3))
    batch = batch_of_groups([scored], [advantages], normalise=stage.loss.normalise, constant=stage.loss.constant)
    return policy.gradient(batch, policy_loss_of(stage), budget=512)[1]


def plain_gradient(base, scored: Group, weights: list[float]) -> torch.Tensor:
    """Of sum_i w_i sum_t -log p(z_it) over the tokens of the thoughts, on full padded logits."""
    plain = copy.deepcopy(base[0])
    loss = torch.zeros(())
    for episode, weight in zip(scored.episodes, weights, strict=True):
        tokens = torch.tensor([episode.trajectory.tokens])
        logprobs = plain(tokens).logits[0].log_softmax(-1)
        prefix, opening, thought, *_ = episode.trajectory.segments
        first = len(prefix.tokens) + len(opening.tokens)
        for at in range(first, first + len(thought.tokens)):
            loss = loss - weight * logprobs[at - 1, tokens[0, at]]
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in plain.parameters() if weight.grad is not None])


def test_the_gradient_is_that_of_the_thoughts_tokens_alone(base, renderer, stage) -> None:
    [scored], _ = scorer(base, renderer).score([group(renderer, *THOUGHTS)], budget=512)
    gains = [score.value or 0.0 for score in scored.scores]
    found = gradient_of(base, scored, advantages_of(scored, stage), stage)
    expected = plain_gradient(base, scored, [(gain - sum(gains) / 3) / (48 * 3) for gain in gains])
    assert torch.allclose(found, expected, atol=1e-6)
    assert expected.abs().max() > 1e-5


def test_distilling_the_best_is_cross_entropy_on_the_thought_that_gained_most(base, renderer, stage) -> None:
    loss = stage.loss.model_copy(update={"setting": None, "advantage": "best", "normalise": "token", "constant": None})
    asked = stage.model_copy(update={"loss": loss})
    [scored], _ = scorer(base, renderer).score([group(renderer, *THOUGHTS)], budget=512)
    gains = [score.value or 0.0 for score in scored.scores]
    best = gains.index(max(gains))
    advantages = advantages_of(scored, asked)
    assert gains[best] > 0
    assert advantages == [float(at == best) for at in range(3)]
    trained = sum(len(episode.trajectory.segments[2].tokens) for episode in scored.episodes)
    expected = plain_gradient(base, scored, [(advantage or 0.0) / trained for advantage in advantages])
    assert torch.allclose(gradient_of(base, scored, advantages, asked), expected, atol=1e-6)
