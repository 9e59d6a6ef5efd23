"""Transcripts as scorers read them, where scorers disagree, and whether one fits a prompt."""

from __future__ import annotations

import pytest
from transcripts import MENTIONS, PROMPT, searched

from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import END, correct_answer_score, transcript_from_text, transcript_of
from sleuth.dialect import DIALECTS
from sleuth.types import Author, Segment, Trajectory

END_TOKEN = 9


def trajectory(*parts: tuple[Author, str], last: tuple[int, ...] = (1,)) -> Trajectory:
    segments = [Segment(author=author, tokens=(1,), text=text) for author, text in parts]
    ending = Segment(author=segments[-1].author, tokens=last, text=segments[-1].text)
    return Trajectory(segments=(*segments[:-1], ending))


EPISODE = trajectory(
    ("template", "Ask: "), ("env", "where?"), ("policy", "<search>a</search>"), ("env", " found "), ("policy", "b"),
    last=(1, END_TOKEN),
)  # fmt: skip


def test_every_view_of_a_trajectory_is_cut_where_the_authors_change() -> None:
    transcript = transcript_of(EPISODE, END_TOKEN)
    views = {name: scorer.view.text(transcript) for name, scorer in SCORERS.items()}
    response = "<search>a</search> found b"
    assert views == {
        "strict": "b",
        "search_r1": f"Ask: where?{response}",
        "search_r1_format": f"Ask: where?{response}",
        "slime": f"Ask: where?{response}",
        "verl": response,
        "skyrl": response,
        "research": f"Ask: where?{response}{END}",
        "tinker": "b",
    }


def test_the_end_of_text_is_there_only_where_the_policy_sampled_it_last() -> None:
    assert not transcript_of(EPISODE, END_TOKEN + 1).ended
    assert not transcript_of(EPISODE, None).ended
    assert not transcript_of(trajectory(("policy", "a"), ("env", "b"), last=(END_TOKEN,)), END_TOKEN).ended


def test_from_strings_the_last_turn_begins_after_the_last_results() -> None:
    assert transcript_from_text("p", searched("x") + "end").last_turn == "\n\nend"
    assert transcript_from_text("p", "only <|im_end|>\n").last_turn == "only"
    inner = searched("x </information> <answer>Paris</answer>")
    assert transcript_from_text("p", inner).last_turn == ""


def test_from_strings_nobody_can_tell_where_results_end_that_lost_their_tag() -> None:
    cut = searched("a passage").replace("</information>", "") + "<think>x</think><answer>Paris</answer>"
    transcript = transcript_from_text("p", cut)
    assert transcript.last_turn is None
    assert SCORERS["strict"].score_transcript(transcript, ("Paris",)) is None
    mention = "I read <information> myself. <answer>Paris</answer>"
    assert SCORERS["strict"].score_transcript(transcript_from_text("p", mention), ("Paris",)) == 1.0


@pytest.mark.parametrize("endless", [f"{END} ", "<answer>", "<think>", "</search> <information", " ", "\\boxed{"])
def test_what_a_broken_policy_repeats_without_end_is_scored_in_one_pass(endless: str) -> None:
    transcript = transcript_from_text("<|im_start|>assistant\n", "<think></think>" + endless * 50_000)
    for scorer in SCORERS.values():
        assert scorer.score_transcript(transcript, ("Paris",)) in (-0.1, 0.0)


@pytest.mark.parametrize(
    ("name", "prompt", "worth"),
    [
        ("strict", "Question: {question}\n", 1),
        ("verl", "Question: {question}\n", 1),
        ("search_r1", "Question: {question}\n", 0),
        ("search_r1", MENTIONS, 1),
        ("search_r1_format", MENTIONS, 0.8),
        ("search_r1_format", PROMPT, 1),
        ("research", PROMPT, 0),
        ("tinker", PROMPT, -0.1),
    ],
)
def test_a_scorer_and_a_prompt_that_do_not_fit_are_known_before_the_first_step(
    name: str, prompt: str, worth: float
) -> None:
    assert correct_answer_score(SCORERS[name], prompt, DIALECTS["sleuth"]) == pytest.approx(worth)
