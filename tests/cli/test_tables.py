"""Every table at 80 and at 120 columns, in a pipe: no line is longer, and no number is cut or folded."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sleuth.answers.failures import MODES
from sleuth.cli import report
from sleuth.cli.plan import print_card_plan
from sleuth.evaluation.figures import figures as table_of_figures
from sleuth.evaluation.intervals import Measured
from sleuth.host.hardware import read_cards
from sleuth.plan.fit import plan_for_cards
from sleuth.recipe import load_recipe
from sleuth.terminal import tables
from sleuth.terminal.tables import Column, print_columns

BIG = 123_456_789
LONG = "an_arm_with_quite_a_long_name"
MEASURED = Measured(value=-1234.567, low=-2345.678, high=1098.764, n=BIG)
CELL = {"value": 0.458, "low": 0.44, "high": 0.47}
Shown = tuple[Callable[[], object], list[str]]
"""What prints a table, and the numbers that must be whole in it."""


def comparison(*names: str) -> Shown:
    pairs = [(names[0], name) for name in names[1:]]
    difference = SimpleNamespace(measured=MEASURED, p=0.0123)
    found: Any = SimpleNamespace(
        arms=[],
        names=list(names),
        headlines=(),
        notes=(),
        protocols=(),
        recipes={},
        mean="",
        leading=(),
        figures=dict.fromkeys(
            ("response_tokens_mean", "em"),
            SimpleNamespace(levels=dict.fromkeys(names, MEASURED), differences=dict.fromkeys(pairs, difference)),
        ),
        became=dict.fromkeys(pairs),
        modes={name: dict.fromkeys(MODES, BIG) for name in names},
    )
    return lambda: report._print(found), [
        "-1234.567",
        "[-2345.68, 1098.76]",
        "0.012",
        f"123,456,789 ({1 / len(MODES):.0%})",
    ]


def sets() -> Shown:
    keys = [*(row.name for row in table_of_figures() if row.heading), "missing"]
    suite = {"questions": BIG, **dict.fromkeys(keys, CELL)}
    whole = {"sets": {"a_set_of_questions_with_a_long_name": suite, "nq": suite}, **dict.fromkeys(keys, CELL)}
    return lambda: tables.print_sets("suite", whole), ["123,456,789", "246,913,578", "0.458", "0.44-0.47"]


def probes() -> Shown:
    columns = {str(at): f"a heading of words {at}" for at in range(6)}
    rows = {LONG: dict.fromkeys(columns, MEASURED)}
    return lambda: tables.print_measured("title", rows, columns), [
        "-1234.567",
        "-2345.68 to 1098.76",
        "123,456,789",
    ]


def card() -> Shown:
    found = plan_for_cards(load_recipe("thinking_0.6b"), read_cards("1 x 141 GB"))
    heads = {f"{sum(phase.bytes.values()) / 1e9:.1f}" for phase in found.phases}
    return lambda: print_card_plan(found), sorted(heads)


TABLES: dict[str, Callable[[], Shown]] = {
    "compare four": lambda: comparison("base", LONG, "other", "another"),
    "plan of a card": card,
    "figures": lambda: (
        lambda: tables.print_figures("title of the figures", {"a_figure_with_a_long_name": MEASURED}),
        ["-1234.567", "-2345.678 to 1098.764", "123,456,789"],
    ),
    "sets": sets,
    "probe": probes,
}


@pytest.mark.parametrize("columns", [None, 120])
@pytest.mark.parametrize("name", TABLES)
def test_no_number_of_a_table_is_cut(
    name: str, columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if columns is None:  # a pipe has 80
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    show, numbers = TABLES[name]()
    show()
    printed = capsys.readouterr().out
    assert [number for number in numbers if number not in printed] == []
    table = [line for line in printed.splitlines() if not re.search(r"[a-z] [a-z]+ [a-z]+ |, |: ", line)]  # no prose
    assert table
    assert [line for line in table if len(line.rstrip()) > (columns or 80) or "…" in line] == []


def test_columns_that_do_not_fit_follow_below_under_the_same_labels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns = [Column(heading=f"h{at}", cells=[f"{at}" * 10], footer="9" * 12) for at in range(4)]
    print_columns(["label"], columns, heading="what", footer="in all")
    printed = capsys.readouterr().out
    assert printed.count("label") == printed.count("what") == printed.count("in all") == 2
    assert all(str(at) * 10 in printed for at in range(4))
