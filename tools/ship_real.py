"""Write the reader of real questions and the passages of its demo into the repository:
`python -m tools.ship_real runs/real models/tiny-real DATA --evaluation trained`.

RUN is a finished run of recipes/tiny/real.toml, DATA the folder of its texts. The folder gets the last checkpoint in
bfloat16 with its protocol, `corpus.jsonl.gz` with those passages whose licence is clear, nine questions to try, a
model card with the figures of the run's eval/*.json, and the licence. The same input gives the same bytes. Run
tools/fit_certainty.py afterwards: how sure the former model was is removed with it. The demo searches fewer passages
than the run and withholds what it is not sure of: tests/cli/test_real_demo.py says if it does not answer all nine
rightly, and then another --seed draws others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.answers.match import exact_match
from sleuth.cli.demo import CORPUS, QUESTIONS
from sleuth.data.rows import Row, read_rows
from sleuth.episodes.protocol import FILE as PROTOCOL
from sleuth.evaluation.certainty import FILE as CERTAINTY
from sleuth.host.checksums import write_checksums
from sleuth.report.run_files import read_evaluation, read_object
from sleuth.types import SleuthError
from tools.ship_base import write_model

MODEL_BYTES, CORPUS_BYTES = 16_000_000, 6_000_000
"""Largest size of weights and tokenizer, and of the passages."""
PASSAGE_FILES = ("reading_corpus.jsonl.gz", "reading_intros.jsonl.gz")
TEST_FILE = "reading_test.jsonl.gz"
COUNT = 9
LICENCE_FILE = "LICENSE-CC-BY-SA-4.0.md"
LEGAL_CODE = "https://creativecommons.org/licenses/by-sa/4.0/legalcode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where texts that it was trained with are from. `name` is that of rows in DATA, with `source` or `data_source`. A
    star behind a licence: not stated there, as it is commonly known. `ships`: its passages are in the demo's corpus."""

    name: str
    data_set: str
    authors: str
    repository: str
    licence: str
    ships: bool = False


SOURCES = (
    Source(
        name="squad_train_part",
        data_set="SQuAD 1.1, train (the test part of Du, Shao and Cardie's split, arXiv:1705.00106)",
        authors="Rajpurkar, Zhang, Lopyrev and Liang, arXiv:1606.05250",
        repository="tomhosking/squad-du-split, beac7f3",
        licence="CC BY-SA 4.0*",
        ships=True,
    ),
    Source(
        name="squad_dev",
        data_set="SQuAD 1.1, dev",
        authors="Rajpurkar, Zhang, Lopyrev and Liang, arXiv:1606.05250",
        repository="rajpurkar/SQuAD-explorer, e0c66cf, and elgeish/squad, 3b6aa9c",
        licence="CC BY-SA 4.0",
        ships=True,
    ),
    Source(
        name="ottqa",
        data_set="OTT-QA, dev",
        authors="Chen, Chang, Schlinger, Wang and Cohen, arXiv:2010.10439",
        repository="wenhuchen/OTT-QA, b289bcc",
        licence="MIT; Wikipedia text CC BY-SA*",
        ships=True,
    ),
    Source(
        name="hybridqa",
        data_set="HybridQA, dev (its passages are those of OTT-QA)",
        authors="Chen, Zha, Chen, Xiong, Wang and Wang, arXiv:2004.07347",
        repository="wenhuchen/HybridQA, db22fda",
        licence="MIT; Wikipedia text CC BY-SA*",
        ships=True,
    ),
    Source(
        name="wiki_intro",
        data_set="first paragraphs of Wikipedia articles, from OTT-QA",
        authors="Chen, Chang, Schlinger, Wang and Cohen, arXiv:2010.10439",
        repository="wenhuchen/OTT-QA, b289bcc",
        licence="MIT; Wikipedia text CC BY-SA*",
        ships=True,
    ),
    Source(
        name="qamr",
        data_set="QAMR, dev and test",
        authors="Michael, Stanovsky, He, Dagan and Zettlemoyer, arXiv:1711.05885",
        repository="uwnlp/qamr, 956b0eb",
        licence="MIT; Wikipedia text CC BY-SA*, Wikinews text CC BY 2.5*",
    ),
    Source(
        name="fairytaleqa",
        data_set="FairytaleQA",
        authors="Xu and others, arXiv:2203.13947",
        repository="uci-soe/FairytaleQAData, a24ddc1",
        licence="Apache-2.0; tales from Project Gutenberg, public domain*",
    ),
    Source(
        name="timeqa",
        data_set="TimeQA",
        authors="Chen, Wang and Wang, arXiv:2108.06314",
        repository="wenhuchen/Time-Sensitive-QA, 38b0598",
        licence="BSD-3-Clause; Wikipedia text CC BY-SA*",
    ),
    Source(
        name="qed",
        data_set="QED, dev",
        authors="Lamm and others, arXiv:2009.06354",
        repository="google-research-datasets/QED, 2492920",
        licence="CC BY-SA 3.0 and GFDL; annotations CC BY-SA 3.0*",
    ),
    Source(
        name="nq_gold",
        data_set="Natural Questions, dev",
        authors="Kwiatkowski and others, 2019",
        repository="nelson-liu/lost-in-the-middle, 29b8a6d",
        licence="CC BY-SA 3.0*",
    ),
    Source(
        name="squad_newwiki",
        data_set="SQuADShifts, new Wikipedia",
        authors="Miller, Krauth, Recht and Schmidt, arXiv:2004.14444",
        repository="modestyachts/squadshifts-website, b7cc4d5",
        licence="CC BY 4.0*; Wikipedia text CC BY-SA",
    ),
    Source(
        name="triviaqa_wiki18",
        data_set="Wikipedia passages found for TriviaQA",
        authors="Joshi, Choi, Weld and Zettlemoyer, arXiv:1705.03551",
        repository="GaurisankarJ/reason_over_search, 45495b5",
        licence="Apache-2.0*; Wikipedia text CC BY-SA",
    ),
    Source(
        name="hotpotqa",
        data_set="HotpotQA",
        authors="Yang and others, arXiv:1809.09600",
        repository="OpenSPG/KAG, e1012d3, and RUCAIBox/R1-Searcher, 631167c",
        licence="CC BY-SA 4.0*",
    ),
    Source(
        name="musique",
        data_set="MuSiQue",
        authors="Trivedi, Balasubramanian, Khot and Sabharwal, arXiv:2108.00573",
        repository="OpenSPG/KAG, e1012d3",
        licence="CC BY 4.0*",
    ),
    Source(
        name="2wikimultihopqa",
        data_set="2WikiMultihopQA",
        authors="Ho, Duong Nguyen, Sugawara and Aizawa, arXiv:2011.01060",
        repository="AdelWang/MIGRES, 1de6265, and OSU-NLP-Group/HippoRAG, c617143",
        licence="Apache-2.0*",
    ),
)
SHIPPED = frozenset(source.name for source in SOURCES if source.ships)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="replaced when all of it is written")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--evaluation", metavar="NAME", help="draw the questions from those answered right there")
    parser.add_argument("--seed", type=int, default=0, help="of the questions")
    asked = parser.parse_args()
    try:
        ship(asked.run, asked.folder, asked.data, evaluation=asked.evaluation, seed=asked.seed)
    except SleuthError as error:
        sys.exit(str(error))


def ship(run: Path, folder: Path, data: Path, *, evaluation: str | None = None, seed: int = 0) -> None:
    """Writes all of the folder, and replaces it at the end. Exits with one line if something is missing or too large;
    the folder then stays as it was. Raises SleuthError for data that cannot be read."""
    partial = folder.with_name(folder.name + ".partial")
    try:
        _write(run, partial, data, evaluation, seed)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes in all")


def _write(run: Path, partial: Path, data: Path, evaluation: str | None, seed: int) -> None:
    checkpoint = write_model(run, partial, MODEL_BYTES)
    if not (checkpoint / PROTOCOL).is_file():
        sys.exit(f"{checkpoint}: has no {PROTOCOL}; the last stage of the run should play episodes")
    shutil.copy(checkpoint / PROTOCOL, partial)
    counts = write_passages(data, partial / CORPUS)
    shipped = {row["id"] for _, row in read_rows(partial / CORPUS)}
    right = right_questions(run, evaluation) if evaluation is not None else None
    write_questions(draw_questions(data, shipped, right, seed), partial / QUESTIONS)
    (partial / "README.md").write_text(model_card(run, counts, evaluation), encoding="utf-8")
    (partial / LICENCE_FILE).write_text(licence_notice(), encoding="utf-8")
    write_checksums(partial, but=["README.md"])


def write_passages(data: Path, file: Path) -> Counter[str]:
    """Writes the passages of the sources that ship, in the order of the data; returns the number of each source. Exits
    with one line if the file is larger than `CORPUS_BYTES` or has no passage."""
    counts, left_out = Counter[str](), Counter[str]()
    with file.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for name in PASSAGE_FILES:
            for _, row in read_rows(data / name):
                source = str(row.get("source", ""))
                (counts if source in SHIPPED else left_out)[source] += 1
                if source in SHIPPED:
                    packed.write(_line({key: row[key] for key in ("id", "contents", "source")}))
    size = file.stat().st_size
    if size > CORPUS_BYTES or not counts:
        sys.exit(f"{file}: {counts.total():,} passages, {size:,} bytes; the limit is {CORPUS_BYTES:,}")
    print(f"{file}: {counts.total():,} passages, {size:,} bytes; left out {dict(left_out.most_common())}")
    return counts


def right_questions(run: Path, evaluation: str) -> set[str]:
    """The questions of `RUN/eval/EVALUATION.json` whose answer is exactly right and stands in the words that it quotes
    from the gold passage. Exits with one line if there is no such file; raises SleuthError for a damaged one."""
    file = run / "eval" / f"{evaluation}.json"
    if not file.is_file():
        sys.exit(f"{file}: no such file; --evaluation should name one of the run")
    return {
        record["question"]
        for record in read_evaluation(file).get("records", ())
        if record["answer"] is not None
        and exact_match(record["answer"], record["golden_answers"])
        and record["cited_holds_answer"] == record["cited_gold"] == 1
    }


def draw_questions(data: Path, shipped: set[str], right: set[str] | None, seed: int) -> list[Row]:
    """Nine test questions that can be asked without their passage, which ships; with `right`, of those. Exits with one
    line if there are fewer."""
    rows = [
        row
        for _, row in read_rows(data / TEST_FILE)
        if row["standalone"] and row["gold_ids"][0] in shipped and (right is None or row["question"] in right)
    ]
    if len(rows) < COUNT:
        sys.exit(f"{data / TEST_FILE}: {len(rows)} questions to draw from; {COUNT} are needed")
    return random.Random(seed).sample(rows, COUNT)


def write_questions(rows: Sequence[Row], file: Path) -> None:
    """Writes rows with `id`, `question`, `golden_answers`, `gold_ids` and `data_source`."""
    keys = ("id", "question", "golden_answers", "gold_ids", "data_source")
    file.write_bytes(b"".join(_line({key: row[key] for key in keys}) for row in rows))


def model_card(run: Path, counts: Mapping[str, int], evaluation: str | None) -> str:
    """README.md of the folder, in Markdown."""
    recipe = (run / "recipe.toml").read_text(encoding="utf-8")
    drawn = (
        f"those that it answered right in `eval/{evaluation}.json`, quoting the gold passage"
        if evaluation
        else "all of them"
    )
    lines = [
        *("---", "license: cc-by-sa-4.0", "language: en", "library_name: transformers"),
        *("pipeline_tag: question-answering", "tags:", "- sleuth", "- search", "---", ""),
        *(f"# {tomllib.loads(recipe)['name']}", ""),
        "A tiny decoder (a Qwen3 with a tokenizer of its own), trained from random weights on CPU cores. It writes a "
        "search query, reads four sentences of the three passages that BM25 finds, and answers with words of one of "
        "them and, in brackets, those that follow there: `Tarn [, a town by a lake.]`. `sleuth demo --real` asks it.",
        "",
        "It knows nothing but what it finds, reads only English, and is often wrong.",
        *("", "## Measured", "", *_measured(run)),
        *("", "## Training", "", f"With Sleuth {__version__}, by recipes/tiny/real.toml:", ""),
        *_table(("stage", "kind", "steps"), _stages(recipe)),
        *("", "The texts, with the commits of the repositories that they were taken from:", ""),
        *_table(("source", "data set", "authors", "repository", "licence"), _sources(SOURCES)),
        *("", "*: not stated in that repository; as the authors are commonly known to license it."),
        *("", "## What is in this folder", ""),
        f"- `model.safetensors`: the weights, stored in bfloat16. `{PROTOCOL}`: how the model is asked.",
        f"- `{CERTAINTY}`: how sure it is of an answer, by tools/fit_certainty.py.",
        f"- `{CORPUS}`: {sum(counts.values()):,} passages for the demo, a part of those that it was trained with: "
        + ", ".join(f"{count:,} of `{source}`" for source, count in sorted(counts.items()))
        + ". Sources whose licence does not allow it, or is not clear, were left out.",
        f"- `{QUESTIONS}`: nine test questions about passages that ship, drawn by a seed from {drawn}.",
        *("", "## Licence and attribution", ""),
        f"All of it is under the Creative Commons Attribution-ShareAlike 4.0 licence ({LICENCE_FILE}); the code of "
        "Sleuth is under Apache-2.0.",
        "",
        "The passages are from Wikipedia, by its authors. The first line of a passage is the title of its article: "
        "`https://en.wikipedia.org/wiki/` and the title, with `_` for spaces, leads to it, and its history lists the "
        "authors. They were collected for the data sets marked in the table:",
        "",
        *_table(
            ("source", "data set", "authors"),
            [row[:3] for row in _sources([source for source in SOURCES if source.ships])],
        ),
        "",
        "What was changed: only some articles and paragraphs were taken, long paragraphs were cut at the end of a "
        "sentence, short ones of SQuAD were joined to their neighbour, and of other articles only the first paragraph "
        "was taken.",
    ]
    return "\n".join(lines) + "\n"


def licence_notice() -> str:
    """The notice of the folder's licence."""
    return (
        "# Creative Commons Attribution-ShareAlike 4.0 International\n\n"
        "The weights, the tokenizer, the passages and the questions in this folder are licensed under CC BY-SA 4.0. "
        "You may share and adapt them, also commercially, if you give credit, link to the licence, say what you "
        "changed, and pass adaptations on under the same licence.\n\n"
        f"The text of the licence: {LEGAL_CODE}\n\n"
        "Credit: the authors of Wikipedia, whose articles the passages are from, the authors of the data sets that "
        "README.md names, and Sleuth. They do not endorse this model. It comes without any warranty.\n\n"
        "The rest of the repository has another licence: see LICENSE there.\n"
    )


def _measured(run: Path) -> list[str]:
    """A table of all figures with an interval in the run's evaluations."""
    rows = [
        (file.stem, figure, f"{found['value']:.3f}", f"{found['low']:.3f} to {found['high']:.3f}", f"{found['n']:,}")
        for file in sorted((run / "eval").glob("*.json"))
        for figure, found in read_object(file).items()
        if isinstance(found, dict) and found.keys() == {"value", "low", "high", "n"} and found["value"] is not None
    ]
    header = ("evaluation", "figure", "value", "interval", "n")
    return list(_table(header, rows)) if rows else ["The run has no evaluation."]


def _stages(recipe: str) -> list[tuple[str, ...]]:
    stages: list[dict[str, Any]] = tomllib.loads(recipe)["stage"]
    return [(f"`{stage.get('name', stage['kind'])}`", stage["kind"], str(stage.get("steps", ""))) for stage in stages]


def _sources(sources: Sequence[Source]) -> list[tuple[str, ...]]:
    return [
        (f"`{source.name}`", source.data_set, source.authors, source.repository, source.licence) for source in sources
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    main()
