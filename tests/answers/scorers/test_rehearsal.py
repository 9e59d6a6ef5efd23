"""Before a run: would a right answer be paid at all?"""

from __future__ import annotations

import pytest
from transcripts import MENTIONS, PROMPT

from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import correct_answer_score
from sleuth.dialect import DIALECTS


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
