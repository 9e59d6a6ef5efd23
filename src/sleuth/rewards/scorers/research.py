r"""ReSearch's reward (arXiv:2503.19470), which reason-over-search trained on: the token F1 of what is boxed.

Kept: the response is what stands between the first assistant marker and a second one; it must end with the end-of-text
token, so that an episode cut by its length earns nothing; a sound format with a wrong answer is worth 0.1; results are
`<result>` elements, and observations count as the policy's words; the box is the last one of the answer, and a `\boxed`
followed by a space reaches to the next dollar sign.

Departure: without any assistant marker the original stops the run; here the score is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.rewards.match import normalise, token_f1
from sleuth.rewards.scorers.scorer import ENDS, EVERYTHING_AND_END, Scorer

MARKERS = ("<|im_start|>assistant\n", "Assistant:")
SOUND_FORMAT = 0.1
BOX, BARE_BOX = "\\boxed{", "\\boxed "


def _score(text: str, golden_answers: Sequence[str]) -> float | None:
    marker = next((marker for marker in MARKERS if marker in text), None)
    if marker is None:
        return None
    response = text.split(marker)[1]
    if not response.endswith(ENDS) or not _is_sound(response):
        return 0.0
    boxed = _boxed(response.partition("<answer>")[2].partition("</answer>")[0])
    if boxed is None:
        return 0.0
    shared = token_f1(boxed, golden_answers) if normalise(boxed) else 0.0  # nothing shares no word, not with nothing
    return shared or SOUND_FORMAT


def _is_sound(response: str) -> bool:
    """Thoughts paired, each search followed by its results, one answer element, a box in it."""
    thoughts = response.count("<think>")
    if not thoughts or thoughts != response.count("</think>"):
        return False
    if response.count("<answer>") != 1 or response.count("</answer>") != 1:
        return False
    answer = response[response.find("<answer>") : response.find("</answer>")]
    return _searches_have_results(response) and BOX in answer and "}" in answer


def _searches_have_results(response: str) -> bool:
    """From every search that is not inside the results of another: its closing tag, then a result element."""
    begin = response.find("<search>")
    while begin >= 0:
        asked = response.find("</search>", begin)
        results = response.find("<result>", begin)
        told = response.find("</result>", results)
        if not begin < asked < results < told:
            return False
        begin = response.find("<search>", told)
    return True


def _boxed(answer: str) -> str | None:
    """The content of the last box; None where its braces do not close."""
    if BARE_BOX in answer:
        return answer.rpartition(BARE_BOX)[2].partition("$")[0]
    begin = answer.rfind("\\boxed")
    if not answer.startswith(BOX, begin):
        return None
    depth = 0
    for at in range(begin, len(answer)):
        depth += (answer[at] == "{") - (answer[at] == "}")
        if answer[at] == "}" and depth == 0:
            return answer[begin + len(BOX) : at]
    return None


RESEARCH = Scorer(name="research", source="ReSearch", view=EVERYTHING_AND_END, score=_score)
