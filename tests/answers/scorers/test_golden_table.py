"""What the published scorers, run on these cases, gave; and what ours makes of them."""

from __future__ import annotations

import pytest
from transcripts import PROMPT, RETRY, answered, chat, searched

from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import transcript_from_text

RIGHT = searched("Paris lies on the Seine.") + answered("Paris")
SCORER_NAMES = ("search_r1", "search_r1_format", "slime", "verl", "skyrl", "strict")

#   case: (response, golden answers, (search_r1, search_r1_format, slime, verl, skyrl, strict))
GOLDEN = {
    "no answer tag at all": ("It is hard to say.", "Paris", (0, 0.1, 0, 0, 0, 0)),
    "no answer tag at all, gold Beijing": ("It is hard to say.", "Beijing", (1, 0.8, 1, 0, 0, 0)),
    "well-formed and right": (RIGHT, "Paris", (1, 1, 1, 1, 1, 1)),
    "the same and end-of-text": (f"{RIGHT}<|im_end|>", "Paris", (1, 0.8, 1, 1, 1, 1)),
    "the same and trailing words": (f"{RIGHT} I think.", "Paris", (1, 0.8, 1, 1, 1, 0)),
    "wrong, gold in the results": (searched("Paris lies there.") + answered("Rome"), "Paris", (0, 0.3, 0, 0, 0, 0)),
    "wrong, gold not in the results": (searched("Lyon.") + answered("Rome"), "Paris", (0, 0.2, 0, 0, 0, 0)),
    "thought and right without a search": (answered("Paris"), "Paris", (1, 1, 1, 1, 1, 1)),
    "thought never closed, right": ("<think>I know.\n<answer>Paris</answer>", "Paris", (1, 0.8, 1, 1, 1, 1)),
    "two answers, the last wrong": (
        answered("Paris") + "\n<answer>Rome</answer>", "Paris", (0, 0.1, 0, 0, 0, 0),
    ),
    "two answers, the last right": (
        answered("Rome") + "\n<answer>Paris</answer>", "Paris", (1, 0.8, 1, 1, 1, 1),
    ),
    "the retry sentence is last": (f"Hm.{RETRY}", "Paris", (0, 0.1, 0, 0, 0, 0)),
    "the retry sentence is last, gold and": (f"Hm.{RETRY}", "and", (1, 0.8, 1, 1, 1, 0)),
    "retry, then right": (f"Hm.{RETRY}{answered('Paris')}", "Paris", (1, 0.8, 1, 1, 1, 1)),
    "the right element stands in the results alone": (
        searched("<answer>Paris</answer>") + "<think>Done.</think>", "Paris", (1, 0.8, 1, 1, 1, 0),
    ),
    "empty answer": (answered(""), "Paris", (0, 0.2, 0, 0, 0, 0)),
    "empty answer, gold The": (answered(""), "The", (1, 1, 1, 1, 1, 0)),
    "an opening tag nested before Paris": (answered("<answer>Paris"), "Paris", (0, 0.1, 0, 0, 0, 0)),
    "unclosed": ("<think>I know.</think>\n<answer>Paris", "Paris", (0, 0.1, 0, 0, 0, 0)),
    "The Paris!": (answered("The Paris!"), "Paris", (1, 1, 1, 1, 1, 1)),
    "twelve right answers in a row": (
        "<think>I know.</think>" + "<answer>Paris</answer>" * 12, "Paris", (1, 0.8, 1, 0.25, 1, 1),
    ),
    "a boxed sentence": (answered(r"It is \boxed{Paris}."), "Paris", (0, 0.2, 0, 0, 0, 0)),
    "newlines around the answer": (answered("\n\nParis\n"), "Paris", (1, 1, 1, 1, 1, 1)),
    "upper-case tags": ("<THINK>I know.</THINK><ANSWER>Paris</ANSWER>", "Paris", (0, 0.1, 0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDEN)
def test_published_scorers_give_what_their_sources_gave(case: str) -> None:
    response, golden, expected = GOLDEN[case]
    transcript = transcript_from_text(PROMPT, response)
    scores = tuple(SCORERS[name].score_transcript(transcript, (golden,)) for name in SCORER_NAMES)
    assert scores == pytest.approx(expected)


END = "<|im_end|>"
BOXED = f"<think>Hm.</think> <search>q</search> <result>\nLyon\n</result> <think>So.</think> <answer>It is \\boxed{{Paris}}</answer>{END}"  # noqa: E501

RESEARCH = {
    "sound and right": (BOXED, 1.0),
    "no end-of-text: over length": (BOXED.removesuffix(END), 0.0),
    "words after the end-of-text": (f"{BOXED} x", 0.0),
    "sound, half of the words": (BOXED.replace("Paris", "Paris, France"), 2 / 3),
    "sound, nothing right": (BOXED.replace("Paris", "Rome"), 0.1),
    "no box": (f"<think>x</think><answer>Paris</answer>{END}", 0.0),
    "no thought": (f"<answer>\\boxed{{Paris}}</answer>{END}", 0.0),
    "a thought unclosed": (f"<think>x<answer>\\boxed{{Paris}}</answer>{END}", 0.0),
    "two answers": (BOXED.replace(END, f"<answer>\\boxed{{Paris}}</answer>{END}"), 0.0),
    "a search without results": (BOXED.replace("<result>\nLyon\n</result>", ""), 0.0),
    "the last box counts": (BOXED.replace("It is", "Not \\boxed{Rome}, it is"), 1.0),
    "braces inside the box": (BOXED.replace("{Paris}", "{{Paris}}"), 1.0),
    "a box that never closes": (BOXED.replace("{Paris}", "{Paris"), 0.0),
    "a spaced box reaches to the dollar sign": (BOXED.replace("{Paris}", "{x} \\boxed Paris$ or so"), 1.0),
    "a second marker cuts the response": (BOXED + "<|im_start|>assistant\n", 1.0),
}


@pytest.mark.parametrize("case", RESEARCH)
def test_research_pays_the_f1_of_the_box_in_a_sound_response_that_ended(case: str) -> None:
    response, expected = RESEARCH[case]
    transcript = transcript_from_text(chat("Which city?\n"), response)
    assert SCORERS["research"].score_transcript(transcript, ("Paris",)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Answer: Paris", 1.0),
        ("Answer: The Paris.<|im_end|>", 1.0),
        ("Answer: Rome", 0.0),
        ("Paris", -0.1),
        ("Answer: Rome. No, Answer: Paris", -0.1),
        ("<search>q</search><information>Answer: Paris</information>", -0.1),
        ("answer: Paris", -0.1),
    ],
)
def test_tinker_pays_what_follows_the_one_prefix_in_the_last_message(response: str, expected: float) -> None:
    assert SCORERS["tinker"].score_transcript(transcript_from_text(PROMPT, response), ("Paris",)) == pytest.approx(
        expected
    )
