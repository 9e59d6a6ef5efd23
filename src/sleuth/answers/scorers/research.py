r"""ReSearch's reward (arXiv:2503.19470), which reason-over-search trained on: the token F1 of the boxed answer.

As in the original, the response is the text between the first assistant marker and a second one; it must end with the
end-of-text token, so an episode cut by its length scores 0; a right format with a wrong answer scores 0.1; results are
`<result>` elements, and observations count as the policy's words; the last box of the answer counts, and a `\boxed`
followed by a space extends to the next dollar sign.

Departure: without any assistant marker the original stops the run; here the score is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.answers.match import normalise, token_f1
from sleuth.answers.scorers.scorer import ENDS, EVERYTHING_AND_END, Scorer

MARKERS = ("<|im_start|>assistant\n", "Assistant:")
FORMAT_SCORE = 0.1
BOX, BARE_BOX = "\\boxed{", "\\boxed "


def _score(text: str, golden_answers: Sequence[str]) -> float | None:
    response = _response(text)
    if response is None:
        return None
    boxed = _answer(text)
    if boxed is None or not response.endswith(ENDS) or not _is_well_formed(response):
        return 0.0
    f1 = token_f1(boxed, golden_answers) if normalise(boxed) else 0.0  # here two empty answers share no word
    return f1 or FORMAT_SCORE


def _response(text: str) -> str | None:
    """What follows the first assistant marker, up to a second one; None without any."""
    marker = next((marker for marker in MARKERS if marker in text), None)
    return None if marker is None else text.split(marker)[1]


def _answer(text: str) -> str | None:
    """The content of the last box of the first answer element, whether or not the format is right."""
    return _boxed((_response(text) or "").partition("<answer>")[2].partition("</answer>")[0])


def _is_well_formed(response: str) -> bool:
    """Whether thoughts are paired, each search is followed by its results, and the one answer element holds a box."""
    thoughts = response.count("<think>")
    if not thoughts or thoughts != response.count("</think>"):
        return False
    if response.count("<answer>") != 1 or response.count("</answer>") != 1:
        return False
    answer = response[response.find("<answer>") : response.find("</answer>")]
    return _searches_have_results(response) and BOX in answer and "}" in answer


def _searches_have_results(response: str) -> bool:
    """Whether every search outside another one's results is closed and followed by a result element."""
    search = response.find("<search>")
    while search >= 0:
        search_close = response.find("</search>", search)
        result = response.find("<result>", search)
        result_close = response.find("</result>", result)
        if not search < search_close < result < result_close:
            return False
        search = response.find("<search>", result_close)
    return True


def _boxed(answer: str) -> str | None:
    """The content of the last box; None if its braces do not close."""
    if BARE_BOX in answer:
        return answer.rpartition(BARE_BOX)[2].partition("$")[0]
    start = answer.rfind("\\boxed")
    if not answer.startswith(BOX, start):
        return None
    depth = 0
    for index in range(start, len(answer)):
        depth += (answer[index] == "{") - (answer[index] == "}")
        if answer[index] == "}" and depth == 0:
            return answer[start + len(BOX) : index]
    return None


RESEARCH = Scorer(name="research", source="ReSearch", view=EVERYTHING_AND_END, score=_score, answer=_answer)
