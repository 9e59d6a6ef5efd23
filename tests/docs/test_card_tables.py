"""The tables of benchmarks/cards.md, and the shares that the plan computes times with, are what the files of
benchmarks/results say; that of docs/card.md is what the plan says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from verb import sleuth

from benchmarks.gpu.figures import Figure, Kept, Outcome
from sleuth.plan.speed import ASSUMED, MEASURED, Shares
from tools import draw_cards

CARD_PAGE = Path(__file__).parents[2] / "docs/card.md"
PAID = r" ([\d.]+) hours, ([\d.]+) euros \|"
ROWS = re.findall(
    rf"^\| `([\w.]+)`(?:, `([\w.]+)`)? \|.*\|{PAID}{PAID} (\d+) GB \|$", CARD_PAGE.read_text(), re.MULTILINE
)
FACTS = {
    "commit": "abc1234",
    "date": "2026-11-27",
    "versions": {"torch": "2.11.0", "transformers": "5.17.0", "triton": "3.6.0", "numpy": "2.4"},
    "driver": {"driver_version": "580.1"},
}


def test_the_page_and_the_plan_have_what_the_files_say() -> None:
    cards = draw_cards.read_files()
    page = draw_cards.PAGE.read_text(encoding="utf-8")
    assert page == draw_cards.with_tables(page, draw_cards.drawn(cards)), "run: python -m tools.draw_cards"
    assert draw_cards.measured_speeds(cards) == MEASURED, "put into speed.py what `python -m tools.draw_cards` prints"


def outcome(check: str, *figures: tuple[str, float, str], status: str = "done", **more: float) -> Outcome:
    made = [Figure(check=check, name=name, value=value, unit=unit, **more) for name, value, unit in figures]
    return Outcome(check=check, status=status, message="", figures=made, facts=FACTS)  # type: ignore[arg-type]


@pytest.fixture
def cards(tmp_path: Path) -> list[draw_cards.Measured]:
    """Two files: of an H100, on which most was measured, and of a card that the plan does not know."""
    h100 = Kept(path=tmp_path / "gpu-h100.json", card={"name": "NVIDIA H100 80GB HBM3"}, scale="real")
    even = (
        ("kernel: 256 decoded", 51_200.0, "tokens/s"),
        ("kernel: a decode step", 6.0, "ms"),
        ("kernel: read in a step", 14.0, "GB"),
        ("kernel: bandwidth, share of the data sheet", 0.7004, ""),
        ("kernel: 8 alone, a decode step", 2.8, "ms"),
    )
    for one in (
        outcome("even", ("kernel: a decode step", 99.0, "ms")),  # of which the next one is a newer run
        outcome("even", *even, at_most=5.0),
        outcome(
            "update", ("update of 118,528 tokens", 2.0, "s"), ("utilisation, of the peak", 0.23, ""), at_least=0.33
        ),
        outcome("qwen3_4b_lora", ("adapters: requests", 128.0, ""), ("update of 14,816 tokens", 1.5, "s")),
        outcome("tools", ("mixed step: aten::mm, 196.3 calls", 3.25, "ms")),
        outcome("profile", ("update: triton_fused, 28 calls", 7.0, "ms"), ("update: kernels", 1_900.0, "ms")),
        outcome("step", ("rollout", float("nan"), "s"), status="failed"),
    ):
        h100.add(one)
    other = Kept(path=tmp_path / "gpu-z.json", card={"name": "NVIDIA Z1"}, scale="real")
    other.add(outcome("even", ("kernel: a decode step", 4.0, "ms"), at_most=5.0))
    return draw_cards.read_files(tmp_path)


def test_shares_of_the_plan_are_those_measured_and_else_assumed(cards: list[draw_cards.Measured]) -> None:
    weights, tokens = 596_049_920, 118_528
    update = float(f"{6 * weights * tokens / 2.0 / 989e12:.2g}")  # all activations have room
    expected = Shares(update=update, prefill=ASSUMED.prefill, decoding=0.7, layer=0.0001)
    assert draw_cards.measured_speeds(cards) == {"h100-80": expected}


def test_the_page_of_one_card_has_a_row_for_each_recipe_that_it_trains() -> None:
    trained = re.findall(r"^sleuth (?:train|learn papers --recipe) (\S+)", CARD_PAGE.read_text(), re.MULTILINE)
    assert {*trained} <= {name for row in ROWS for name in row[:2]}


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_hours_and_euros_of_the_page_of_one_card_are_those_of_the_plan(
    row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a tenth, or what rounding to two digits leaves; without stages whose questions are not made yet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    small, large, *figures, disk = row
    for recipe, card, price, hours, euros in (
        (small, "rtx-4090", 0.50, *map(float, figures[:2])),
        (large or small, "h100-80", 2.50, *map(float, figures[2:])),
    ):
        planned = json.loads(
            sleuth("plan", recipe, "--card", card, "--threads", 16 if "3b" in recipe else 1, "--json").stdout
        )
        seconds = sum(stage["seconds"] or 0.0 for stage in planned["stages"])
        assert planned["fits"]
        assert seconds / 3600 == pytest.approx(hours, rel=0.1)
        assert seconds / 3600 * price == pytest.approx(euros, rel=0.1)
        assert planned["peak_disk_bytes"] / 1e9 == pytest.approx(float(disk), rel=0.1)
