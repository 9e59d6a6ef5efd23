"""The options of `sleuth eval`, and which of them have a part in what it asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from sleuth.cli.modes import Mode

Suite = Annotated[
    Path | None, typer.Option(help="Instead: test sets in a folder (nq/test.jsonl, ...), or `seven`, those of the hub.")
]
PerSet = Annotated[
    int | None, typer.Option(min=1, help="So many questions of each set, by a hash of their ids: always the same.")
]
AskedWith = Annotated[
    Literal["question", "prompt"] | None,
    typer.Option(
        help="What stands in the prompt: the question, or the whole message that the row brings. "
        "[default: as the model was trained]"
    ),
]
Retrievers = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Instead: a server such as `sleuth retriever`; again for each replica."),
]
Samples = Annotated[int, typer.Option(min=1, help="Samples a question; more than one are drawn at temperature 1.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")]
Scorer = Annotated[
    str | None, typer.Option(help="Told beside strict exact match. [default: what the model was paid by]")
]
Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="An SGLang or vLLM server that serves MODEL; its weights are not loaded here."),
]
ServedAs = Annotated[
    str | None, typer.Option(metavar="NAME", help="What that server calls MODEL, if it is another name.")
]
Slots = Annotated[
    int, typer.Option(min=1, help="Turns written at once, here or by the server; fewer take less memory.")
]
RefinedBy = Annotated[
    str | None,
    typer.Option(metavar="REFINER", help="Show MODEL what this refiner makes of its results, in their place."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write figures and every record to this JSON file; of a suite, each set beside it."),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Keep rows to refine, with a card beside them: the results of every search, or a refiner's answers.",
    ),
]
MinCitationF1 = Annotated[
    float, typer.Option(min=0, max=1, help="With --rows, of a refiner: the citation F1 that an answer needs.")
]
WinRate = Annotated[
    Path | None,
    typer.Option(
        metavar="RECIPE", help="Instead: continue texts beside another model, as the recipe's win_rate stage does."
    ),
]
Against = Annotated[
    str | None, typer.Option(metavar="MODEL", help="With --win-rate: the other model. [default: the recipe's base]")
]
Reasoning = Annotated[
    Path | None,
    typer.Option(metavar="RECIPE", help="Instead: problems, several answers each, as the reason stage does."),
]

# -- what has a part in what -------------------------------------------------------------------------------------------

TOLD = frozenset({"out", "as_json"})
PLAYED = frozenset(
    {"index", "retriever", "dialect", "prompt", "prompt_role", "context", "samples", "forced_search", "scorer"}
    | {"refiner", "ask_with", "engine", "served_as", "slots", "dtype"}
)
AGAINST = "{value} is for --win-rate RECIPE; two models are asked questions one by one"
QUESTIONS = Mode(
    uses=TOLD | PLAYED | {"questions", "limit"},
    why="has no part in --questions; leave it out",
    instead={
        "per_set": "{value} is for --suite; of a file, --limit {value} asks the first so many",
        "min_citation_f1": "{value} is for --rows FILE.jsonl, where what is accepted is kept; give that too",
        "against": AGAINST,
    },
)
KEEPING_ROWS = replace(QUESTIONS, uses=QUESTIONS.uses | {"rows", "min_citation_f1"})
SUITE = Mode(
    uses=TOLD | PLAYED | {"suite", "per_set"},
    why="has no part in --suite; leave it out",
    instead={
        "limit": "{value} is for --questions; of a suite, --per-set {value} asks so many of each set",
        "rows": "is for --questions: a suite is there to be measured with, not to be learned from",
        "min_citation_f1": "{value} is for --questions FILE --rows FILE.jsonl, and --suite keeps no rows; leave it out",
        "against": AGAINST,
    },
)
ONE_OF_THREE = "asks, and --win-rate continues texts; give one of the three: --questions, --suite or --win-rate"
WIN_RATE = Mode(
    uses=TOLD | {"win_rate", "against"},
    why="has no part in --win-rate, which continues texts as the win_rate stage of its recipe says; leave it out",
    instead={"questions": ONE_OF_THREE, "suite": ONE_OF_THREE},
)
OTHERS = "has no part in --reasoning, which asks problems; leave out --questions, --suite and --win-rate"
REASONING = Mode(
    uses=TOLD | {"reasoning"},
    why="has no part in --reasoning, which asks problems as the reason stage of its recipe says; leave it out",
    instead=dict.fromkeys(("questions", "suite", "win_rate"), OTHERS),
)
