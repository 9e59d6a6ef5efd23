"""Search-R1's exact match (arXiv:2503.09516, `qa_em.py`) and slime's copy of it.

What follows from reading the prompt too, and is kept: the prompt of the paper holds two complete answer elements, so
that the guard "at least two" is met before a word was written, and an episode without an answer has the prompt's own
example for one. The element in the sentence after a bad action, and one inside a passage, count too. With a prompt that
holds none, an episode needs two answers of its own: one right answer is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sleuth.rewards.match import exact_match, normalise
from sleuth.rewards.scorers.scorer import EVERYTHING, RESPONSE, Scorer, elements


def answer_of(text: str) -> str | None:
    """The last of at least two answer elements."""
    answers = elements(text, "answer")
    return answers[-1] if len(answers) > 1 else None


def _search_r1_score(text: str, golden_answers: Sequence[str]) -> float:
    answer = answer_of(text)
    return float(answer is not None and exact_match(answer, golden_answers))


SEARCH_R1 = Scorer(name="search_r1", source="Search-R1, qa_em", view=EVERYTHING, score=_search_r1_score)

SLIME = Scorer(name="slime", source="slime, examples/search-r1", view=EVERYTHING, score=_search_r1_score)
"""The example passes a `format_score` of 0.2 that its function never reads: what is left is the exact match."""


# Search-R1's reward with a format score (`qa_em_format.py`, arXiv:2505.15117).
#
# Kept: all that `search_r1` does with the prompt, so that an episode without an answer is paid as a wrong answer; a
# right answer of a bad structure loses the structure's share; the structure is that after the first ChatML assistant
# marker, so that no other chat template ever has one, and anything after the closing answer tag, an end-of-text token
# too, spoils it; one bad action spoils it, because the sentence that follows holds tags out of their order; so does a
# block of results that lost its closing tag to a token budget; a golden answer is looked for in results only where the
# structure holds, as a part of words, and in the prompt's mention of the information tag too.
#
# Departure: a golden answer given as a bare string is a list of one. The original looks for its single letters.

STRUCTURE, FINAL, RETRIEVAL = 0.2, 0.1, 0.1
"""What a right structure, a wrong answer in a wrong one, and a golden answer among the results are worth. The published
scripts set the last to 0; 0.1 is what the comments beside its code assume."""

MARKER = re.compile(r"<\|im_start\|>assistant\s*")
NO_TAG = r"(?:(?!</?(?:think|search|information|answer)>).)*"
EPISODE = re.compile(
    rf"(?s)\s*<think>{NO_TAG}</think>\s*"
    rf"(?:<search>{NO_TAG}</search>\s*<information>{NO_TAG}</information>\s*<think>{NO_TAG}</think>\s*)*"
    rf"<answer>{NO_TAG}</answer>\s*"
)


def has_structure(text: str) -> bool:
    """Whether what follows the assistant marker is think (search information think)* answer, and nothing beside."""
    marker = MARKER.search(text)
    return marker is not None and EPISODE.fullmatch(text, marker.end()) is not None


def _scored(text: str, golden_answers: Sequence[str]) -> float:
    answer, structure = answer_of(text), has_structure(text)
    if answer is not None and exact_match(answer, golden_answers):
        return 1.0 if structure else 1.0 - STRUCTURE
    if structure:
        blocks = [normalise(block) for block in elements(text, "information")]
        found = any(normalise(golden) in block for golden in golden_answers for block in blocks)
        return STRUCTURE + RETRIEVAL if found else STRUCTURE
    return 0.0 if answer is None else FINAL


SEARCH_R1_FORMAT = Scorer(name="search_r1_format", source="Search-R1, qa_em_format", view=EVERYTHING, score=_scored)


# verl's scorer for Search-R1-like data (`search_r1_like_qa_em.py`): the response alone, observations included.
#
# Kept: an answer element inside a passage counts; a right answer among more than ten opening or closing tags is worth a
# quarter, a wrong one nothing either way.

MOST_TAGS = 10
TOO_MANY_TAGS = 0.25
"""What a right answer is worth beyond them."""


def _verl_score(text: str, golden_answers: Sequence[str]) -> float:
    answers = elements(text, "answer")
    if not answers or not exact_match(answers[-1], golden_answers):
        return 0.0
    tags = max(text.count("<answer>"), text.count("</answer>"))
    return TOO_MANY_TAGS if tags > MOST_TAGS else 1.0


VERL = Scorer(name="verl", source="verl, search_r1_like_qa_em", view=RESPONSE, score=_verl_score)


# SkyRL-gym's search environment: the last answer element of all turns and observations laid end to end, no prompt.
#
# Kept: an answer element inside a passage counts, and one that a turn opened can be closed by an observation.


def _skyrl_score(text: str, golden_answers: Sequence[str]) -> float:
    answers = elements(text, "answer")
    return float(bool(answers) and exact_match(answers[-1], golden_answers))


SKYRL = Scorer(name="skyrl", source="SkyRL-gym, envs/search", view=RESPONSE, score=_skyrl_score)
