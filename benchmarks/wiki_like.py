"""`python -m benchmarks.wiki_like CORPUS QUESTIONS --passages N`: made-up text with the statistics of Wikipedia's.

Passages have about 100 words, as those of wiki-18. Words follow Zipf's law as Mandelbrot shifted it (exponent 1.05,
two million types, of which the first 100 are English function words), and a seventh of a passage's words are repeats of
a few words that it is about, two of which are its title. A question asks for words of one passage among function words
and words that are common in questions. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FUNCTION_WORDS = (  # noqa: SIM905 - a list of a hundred lines reads worse
    "the of and in to a was is for on as by with he at from that his it an were are which this also be had or has "
    "first their after one its but not who new they two her have she been other when during all into there time "
    "may more up while years where many only between most city over about school such through used then later "
    "than can these some made out united became part states american no world under before him would three both "
    "until so being team where "
).split()
TYPES, EXPONENT, SHIFT = 2_000_000, 1.05, 2.7
WORDS, SUBJECTS, SUBJECT_SHARE = 100, 8, 1 / 7
BLOCK = 2000  # passages drawn at once
ASKED = ("who", "what", "when", "where", "which", "how many")
ONSETS = (*"bcdfghklmnprstvw", "st", "tr", "br", "ch")
SYLLABLES = [f"{onset}{vowel}" for onset in ONSETS for vowel in "aeiou"]
ENDINGS = ("", "n", "r", "s", "ing", "ed", "l", "ton", "ian", "er")


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiki_like", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--passages", type=int, required=True)
    parser.add_argument("--asked", type=int, default=5000, help="questions (5000)")
    options = parser.parse_args()
    every = max(1, options.passages // options.asked)
    rng = np.random.default_rng(1)
    with options.corpus.open("w") as corpus, options.questions.open("w") as questions:
        for number, (title, text, subjects) in enumerate(passages(options.passages)):
            corpus.write(json.dumps({"id": str(number), "contents": f'"{title}"\n{text}'}) + "\n")
            if number % every == 0:
                row = {"id": f"q{number}", "question": question(subjects, rng), "golden_answers": [subjects[-1]]}
                questions.write(json.dumps(row | {"gold_ids": [str(number)]}) + "\n")


def word(rank: int) -> str:
    """The word of a rank: rarer words are longer, as in any language."""
    if rank < len(FUNCTION_WORDS):
        return FUNCTION_WORDS[rank]
    rest, made = (rank - len(FUNCTION_WORDS)) // len(ENDINGS), ""
    while True:
        rest, at = divmod(rest, len(SYLLABLES))
        made += SYLLABLES[at]
        if not rest:
            return made + ENDINGS[rank % len(ENDINGS)]


def passages(count: int, seed: int = 0) -> Iterator[tuple[str, str, list[str]]]:
    """(title, text, subjects) of each passage."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, TYPES + 1) + SHIFT) ** -EXPONENT
    cumulated = np.cumsum(weights) / weights.sum()
    known: dict[int, str] = {}

    def spelled(ranks: np.ndarray) -> list[str]:
        return [known.get(rank) or known.setdefault(rank, word(rank)) for rank in ranks.tolist()]

    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        lengths = np.clip(rng.normal(WORDS, 8, size).astype(int), 30, 140)
        ranks = cumulated.searchsorted(rng.random((size, 140))).clip(0, TYPES - 1)
        subjects = (len(FUNCTION_WORDS) + 10 ** rng.uniform(1.5, 6.0, (size, SUBJECTS))).astype(int)
        about = rng.random((size, 140)) < SUBJECT_SHARE
        ranks[about] = np.take_along_axis(subjects, rng.integers(0, SUBJECTS, (size, 140)), axis=1)[about]
        for row in range(size):
            named = spelled(subjects[row])
            words = spelled(ranks[row, : lengths[row]])
            sentences = [" ".join(words[at : at + 20]).capitalize() for at in range(0, len(words), 20)]
            yield f"{named[0]} {named[1]}".title(), ". ".join(sentences) + ".", named


def question(subjects: list[str], rng: np.random.Generator) -> str:
    """Eight to twelve words, of which three name a passage and two to four are common ones."""
    common = [word(int(rank)) for rank in rng.integers(50, 3000, rng.integers(2, 5))]
    first = ASKED[rng.integers(len(ASKED))]
    return f"{first} was the {common[0]} of {subjects[0]} {subjects[1]} in {' '.join(common[1:])} {subjects[2]}?"


if __name__ == "__main__":
    main()
