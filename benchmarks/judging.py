"""`python -m benchmarks.judging [--experts FILE]`: how accurate the lexical judge is.

On the generated world, where it is known which snippet states which claim: every claim with every snippet of its row,
and every claim with a supporting snippet after a change of its words (another name or year, a negation). With a file of
ExpertQA's answers: each claim with all its citations, compared with the support that an expert found.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sleuth.cite.claims import BRACKETS
from sleuth.cite.rows import snippets_of
from sleuth.cite.world_tool_outputs import ToolOutputs
from sleuth.data.rows import read_rows
from sleuth.evaluation.intervals import share
from sleuth.judges.lexical import support
from sleuth.world.facts import make_world
from sleuth.world.library import Library
from sleuth.world.write_world import draw_questions

PEOPLE, ROWS = 2000, 500
SUPPORTED = 0.5


def main() -> None:
    """Print one JSON object: shares with their intervals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judging", description=__doc__)
    parser.add_argument("--experts", type=Path)
    options = parser.parse_args()
    figures = world_figures()
    if options.experts is not None:
        figures |= expert_figures(options.experts)
    print(json.dumps(figures, indent=1))


def world_figures() -> dict[str, Any]:
    """The share of claims judged supported: by the right snippet, by any other of the row, and after a change."""
    verdicts: defaultdict[str, list[float]] = defaultdict(list)
    for row in _rows():
        texts = {snippet.id: snippet.text for snippet in snippets_of(row["tool_output"])}
        for entry in row["support"]:
            for id_, text in texts.items():
                kind = "stated" if id_ in entry["snippets"] else "not_stated"
                verdicts[kind].append(_supported(entry["claim"], text))
            [stating, *_] = entry["snippets"]
            for change, claim in _changed(entry["claim"]):
                verdicts[change].append(_supported(claim, texts[stating]))
    return {f"world_{kind}": share(found).as_json() for kind, found in verdicts.items()}


def expert_figures(file: Path) -> dict[str, Any]:
    """The share of claims judged supported, by the verdict of the expert."""
    verdicts: defaultdict[str, list[float]] = defaultdict(list)
    for _, row in read_rows(file):
        texts = {source["id"]: "\n".join(source["snippets"]) for source in row["sources"]}
        for claim in row["claims"]:
            cited = [texts[id_] for id_ in claim["cited"] if texts.get(id_, "").strip()]
            if cited:
                said = BRACKETS.sub("", claim["text"])
                verdicts[str(claim["support"])].append(_supported(said, "\n\n".join(cited)))
    return {f"expert_{label}": share(found).as_json() for label, found in sorted(verdicts.items())}


def _rows() -> Iterator[dict[str, Any]]:
    world, rng = make_world(0, PEOPLE), random.Random(1)
    library = Library(world, random.Random(0))
    outputs = ToolOutputs(world, library, "test", rng)
    for question in islice(draw_questions(world, library, "test", rng), ROWS):
        yield outputs.row(question)


def _changed(claim: str) -> Iterator[tuple[str, str]]:
    """The claim with one false detail."""
    year = re.search(r"\d{4}", claim)
    if year:
        yield "changed_year", claim.replace(year[0], str(int(year[0]) + 1))
    name = re.search(r"[A-Z]\w+(?=\W)", claim.removeprefix("The "))
    if name:
        yield "changed_name", claim.replace(name[0], "Zyrav", 1)
    for verb in (" was ", " is ", " worked ", " wrote ", " founded "):
        if verb in claim:
            yield "denied", claim.replace(verb, f"{verb}not " if verb in (" was ", " is ") else f" never{verb}", 1)


def _supported(claim: str, evidence: str) -> float:
    return float((support(claim, evidence).score or 0.0) >= SUPPORTED)


if __name__ == "__main__":
    main()
