"""Exact match as Search-R1 (arXiv:2503.09516) and the frameworks that reimplement it compute it: slime, verl, SkyRL.

All read the last `<answer>` element of a text in which observations count as the policy's words: an element inside a
passage, or in the sentence that follows a bad action, is an answer too. They differ in whether that text includes the
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.answers.match import exact_match, normalise
from sleuth.answers.scorers.scorer import EVERYTHING, RESPONSE, Scorer, elements


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
    answers = elements(text, "answer")
    return answers[-1] if answers else None


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
