r"""The answer scorers of published systems.

Search-R1 (arXiv:2503.09516) and the frameworks that reimplement it (slime, verl, SkyRL) compute exact match of the last
`<answer>` element of a text in which observations count as the policy's words: an element inside a passage, or in the
sentence that follows a bad action, is an answer too. They differ in whether that text includes the prompt.

ReSearch's reward (arXiv:2503.19470), which reason-over-search trained on, is the token F1 of the boxed answer. As in
the original, the response is the text between the first assistant marker and a second one; it must end with the
end-of-text token, so an episode cut by its length scores 0; a right format with a wrong answer scores 0.1; results are
`<result>` elements, and observations count as the policy's words; the last box of the answer counts, and a `\boxed`
followed by a space extends to the next dollar sign. Departure: without any assistant marker the original stops the run;
here the score is missing.

tinker-cookbook's search reward is exact match of what follows the one `Answer:` of the last assistant message. As in
the original, a last message without `Answer:`, or with more than one, scores -0.1, and everything after it is the
answer, an explanation too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.answers.match import exact_match, normalise, token_f1
from sleuth.answers.scorers.scorer import ENDS, EVERYTHING, EVERYTHING_AND_END, LAST_TURN, RESPONSE, Scorer, elements


def answer_of(text: str) -> str | None:
    """The last of at least two answer elements; None if there are fewer."""
    answers = elements(text, "answer")
    return answers[-1] if len(answers) > 1 else None


def _search_r1_score(text: str, golden_answers: Sequence[str]) -> float:
    """Search-R1's `qa_em.py`, which reads the prompt too.

    The paper's prompt holds two complete answer elements. They satisfy "at least two" before the policy wrote a word,
    and an episode without an answer is scored by the prompt's example. After a prompt without any, an episode needs two
    answers of its own: a single right answer scores 0.
    """
    answer = answer_of(text)
    return float(answer is not None and exact_match(answer, golden_answers))


SEARCH_R1 = Scorer(
    name="search_r1", source="Search-R1, qa_em", view=EVERYTHING, score=_search_r1_score, answer=answer_of
)

SLIME = Scorer(
    name="slime", source="slime, examples/search-r1", view=EVERYTHING, score=_search_r1_score, answer=answer_of
)
"""The example passes a `format_score` of 0.2 that its function never reads: what is left is the exact match."""


STRUCTURE, FINAL, RETRIEVAL = 0.2, 0.1, 0.1
"""The scores of a right structure, of a wrong answer in a wrong structure, and of a golden answer in the results. The
published scripts set the last to 0; 0.1 is what the comments beside its code assume."""

MARKER = re.compile(r"<\|im_start\|>assistant\s*")
NO_TAG = r"(?:(?!</?(?:think|search|information|answer)>).)*"
EPISODE = re.compile(
    rf"(?s)\s*<think>{NO_TAG}</think>\s*"
    rf"(?:<search>{NO_TAG}</search>\s*<information>{NO_TAG}</information>\s*<think>{NO_TAG}</think>\s*)*"
    rf"<answer>{NO_TAG}</answer>\s*"
)


def has_structure(text: str) -> bool:
    """Whether the text after the assistant marker is think (search information think)* answer and nothing else."""
    marker = MARKER.search(text)
    return marker is not None and EPISODE.fullmatch(text, marker.end()) is not None


def _search_r1_format_score(text: str, golden_answers: Sequence[str]) -> float:
    """Search-R1's reward with a format score (`qa_em_format.py`, arXiv:2505.15117).

    The answer is read as by `search_r1`, so that an episode without one is scored as a wrong answer. A right answer in
    a wrong structure loses the structure's share. The structure starts at the first ChatML assistant marker, so that no
    other chat template ever has one. It is spoiled by anything after the closing answer tag (an end-of-text token too),
    by one bad action (the sentence that follows holds tags out of order), and by results that lost their closing tag to
    a token budget. Golden answers are looked up in the results only if the structure is right, as substrings, and also
    in the prompt's mention of the information tag.

    Departure: a golden answer given as a bare string is a list of one; the original looks for its single letters.
    """
    answer, structure = answer_of(text), has_structure(text)
    if answer is not None and exact_match(answer, golden_answers):
        return 1.0 if structure else 1.0 - STRUCTURE
    if structure:
        blocks = [normalise(block) for block in elements(text, "information")]
        retrieved = any(normalise(golden) in block for golden in golden_answers for block in blocks)
        return STRUCTURE + RETRIEVAL if retrieved else STRUCTURE
    return 0.0 if answer is None else FINAL


SEARCH_R1_FORMAT = Scorer(
    name="search_r1_format",
    source="Search-R1, qa_em_format",
    view=EVERYTHING,
    score=_search_r1_format_score,
    answer=answer_of,
)

MAX_TAGS = 10
MANY_TAGS_SCORE = 0.25


def _last_answer(text: str) -> str | None:
    return (elements(text, "answer") or [None])[-1]


def _verl_score(text: str, golden_answers: Sequence[str]) -> float:
    """verl's `search_r1_like_qa_em.py`, which reads the response alone. A right answer among more than ten opening or
    closing answer tags scores 0.25; a wrong one scores 0 either way."""
    answer = _last_answer(text)
    if answer is None or not exact_match(answer, golden_answers):
        return 0.0
    tags = max(text.count("<answer>"), text.count("</answer>"))
    return MANY_TAGS_SCORE if tags > MAX_TAGS else 1.0


VERL = Scorer(name="verl", source="verl, search_r1_like_qa_em", view=RESPONSE, score=_verl_score, answer=_last_answer)


def _skyrl_score(text: str, golden_answers: Sequence[str]) -> float:
    """SkyRL-gym's search environment, which reads all turns and observations joined, without the prompt: an element
    that a turn opened can be closed by an observation."""
    answer = _last_answer(text)
    return float(answer is not None and exact_match(answer, golden_answers))


SKYRL = Scorer(name="skyrl", source="SkyRL-gym, envs/search", view=RESPONSE, score=_skyrl_score, answer=_last_answer)

MARKERS = ("<|im_start|>assistant\n", "Assistant:")
FORMAT_SCORE = 0.1
BOX, BARE_BOX = "\\boxed{", "\\boxed "


def _research_score(text: str, golden_answers: Sequence[str]) -> float | None:
    response = _response(text)
    if response is None:
        return None
    boxed = _box(text)
    if boxed is None or not response.endswith(ENDS) or not _is_well_formed(response):
        return 0.0
    f1 = token_f1(boxed, golden_answers) if normalise(boxed) else 0.0  # here two empty answers share no word
    return f1 or FORMAT_SCORE


def _response(text: str) -> str | None:
    """What follows the first assistant marker, up to a second one; None without any."""
    marker = next((marker for marker in MARKERS if marker in text), None)
    return None if marker is None else text.split(marker)[1]


def _box(text: str) -> str | None:
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


RESEARCH = Scorer(name="research", source="ReSearch", view=EVERYTHING_AND_END, score=_research_score, answer=_box)

PREFIX = "Answer:"
FORMAT_PENALTY = -0.1


def _tinker_answer(last_turn: str) -> str | None:
    return last_turn.partition(PREFIX)[2].strip() if last_turn.count(PREFIX) == 1 else None


def _tinker_score(last_turn: str, golden_answers: Sequence[str]) -> float:
    answer = _tinker_answer(last_turn)
    return FORMAT_PENALTY if answer is None else float(exact_match(answer, golden_answers))


TINKER = Scorer(
    name="tinker", source="tinker-cookbook, search_tool", view=LAST_TURN, score=_tinker_score, answer=_tinker_answer
)
