"""Draw the tables of benchmarks/cards.md from benchmarks/results/gpu-*.json: `python -m tools.draw_cards` writes
them into the page, and prints the plan's shares of each card as they belong into src/sleuth/plan/speed.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.card import planned_card
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.figures import Figure, Outcome, as_number, read_kept
from benchmarks.gpu.speeds import compared, found_in, measured_shares
from sleuth.plan.speed import Shares

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "benchmarks" / "cards.md"
BEGIN, END = "<!-- drawn by tools/draw_cards.py -->", "<!-- drawn to here -->"
KERNELS = 6
"""Kernels that are listed of a piece of work, at most."""

UPDATE, SHARE = r"update of [\d,]+ tokens", "utilisation, of .*"
ROWS = (
    ("a product of two bf16 matrices", "card", "product of two matrices"),
    ("clock under load, at most", "card", "under load: clocks.sm", "under load: clocks.max.sm"),
    ("power under load, limit", "card", "under load: power.draw", "under load: power.limit"),
    ("a warm step of `search_0.6b_single_gpu`: rollout and update", "step", "rollout and update, warm"),
    ("the same: rollout", "step", "rollout", "tokens sampled"),
    ("the same: update", "step", "update", "update: utilisation, of .*"),
    ("the same: peak memory, rollout and update", "step", "rollout: peak memory", "update: peak memory"),
    ("the same: of the plan's", "step", "rollout: peak memory, of .*", "update: peak memory, of .*"),
    ("the same: KL of sampler and learner", "step", "sampler to learner, KL"),
    ("an update of 118,528 tokens, 32,768 a pass", "update", UPDATE, SHARE),
    ("the same: peak memory", "update", "peak memory"),
    ("its gradient beside that of 4,096 a pass", "update", "gradients by budget, error"),
    ("256 requests of 430 tokens: a decode step", "even", "kernel: a decode step", "kernel: 256 decoded"),
    ("the same: launches; of 8 requests", "even", "kernel: launches of a step", "kernel: 8 alone, a decode step"),
    ("the same: mean and largest gap to the learner", "even", "kernel: learner gap, mean", "kernel: learner gap, most"),
    ("256 requests of 400 to 3,900 tokens: a decode step", "ragged", "kernel: a decode step", "kernel: 256 decoded"),
    ("256 episodes of two turns", "tools", "256 episodes of two turns", "tokens sampled"),
    ("the same: a step that reads and decodes", "tools", "mixed steps: apart, median", "mixed step: launches"),
    ("the same: how many of all; share of kernels", "tools", "mixed steps", "forwards", "mixed step: kernels, s.*"),
    ("tokens of graphs and of launched steps; until they differ", "graphs", "graphs: tokens .*", "graphs: until .*"),
    ("log p of a replayed step beside the step launched", "graphs", "graphs: log p beside launched, most"),
    ("an update of 59,264 tokens: ours; nothing recomputed", "peers", "ours, as the recipe", "ours, nothing .*"),
    ("the same: transformers on padded rows, 4 and 8 a pass", "peers", "padded, 4 rows", "padded, 8 rows"),
    ("the same: TRL, 4 and 8 rows a pass", "peers", "TRL, 4 rows", "TRL, 8 rows"),
    ("the same: how many times faster ours is", "peers", "padded over ours", "TRL over ours"),
    ("Qwen3-1.7B: a decode step of 128 requests, an update", "qwen3_1.7b", "a decode step", UPDATE, SHARE),
    ("Qwen2.5-3B: the same", "qwen2.5_3b", "a decode step", UPDATE, SHARE),
    ("Qwen3-4B, adapters: the same", "qwen3_4b_lora", "adapters: a decode step", UPDATE, SHARE),
    ("prompts of 3,000 tokens, 32 x 8: read, a decode step", "refiner", "prompts read", "a decode step"),
    ("the same: an update", "refiner", UPDATE, SHARE),
    ("a text of 32,000 tokens: read, an update", "long", "prompts read in", UPDATE, SHARE),
    ("greedy tokens as those of transformers' `generate`, float32", "greedy", "fp32: as generate, share"),
    ("tree attention: error, of a pass of 32,768 tokens", "attention", r"output, \d+ trees", "forward, backward of .*"),
    ("attention of a decode step, a layer, 64 ragged rows", "paged", "our kernel: decode, a layer"),
    ("128 queries of 500,000 vectors of 768", "vectors", "128 queries of .*"),
)  # fmt: skip
"""A row of the table: what it says, the check, and patterns of the names of its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A card's name, and the last outcome of each check."""

    name: str
    outcomes: dict[str, Outcome]

    def figures(self, check: str) -> Sequence[Figure]:
        """Those of a check; none if it was not run."""
        return self.outcomes[check].figures if check in self.outcomes else ()


def read_files(folder: Path = RESULTS) -> list[Measured]:
    """What is kept of each card, by name."""
    files = [read_kept(file) for file in sorted(folder.glob("gpu-*.json"))]
    return [Measured(name=kept.card["name"], outcomes={one.check: one for one in kept.read()}) for kept in files]


def drawn(cards: Sequence[Measured]) -> str:
    """The tables as the page has them."""
    if not cards:
        return "No file of a card is kept in `benchmarks/results` yet: `make gpu` writes one.\n"
    parts = [_table(cards), *map(_kernels, cards), _plan(cards), "\n".join(_facts(cards))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(cards: Sequence[Measured]) -> str:
    lines = [_row(["", *(card.name.removeprefix("NVIDIA ") for card in cards)]), "|---" * (1 + len(cards)) + "|"]
    for label, check, *patterns in ROWS:
        cells = [", ".join(filter(None, (_cell(card.figures(check), one) for one in patterns))) for card in cards]
        if any(cells):
            lines.append(_row([label, *cells]))
    return "\n".join(lines)


def _cell(figures: Sequence[Figure], pattern: str) -> str:
    """`4.6 ms`, with its bar if that was missed; of a share of the peak `18 %`; nothing without the figure."""
    figure = next((one for one in figures if re.fullmatch(pattern, one.name)), None)
    if figure is None:
        return ""
    percent = figure.name.rpartition(": ")[2].startswith("utilisation")
    bar = next((as_number(bar, percent) for bar in (figure.at_least, figure.at_most) if bar is not None), "")
    missed = f" (bar: {bar})" if figure.held is False else ""
    unit = " of the card" if percent else f" {figure.unit}" if figure.unit else ""
    return f"{as_number(figure.value, percent)}{unit}{missed}"


def _kernels(card: Measured) -> str:
    """Where the time of a decode step, of one that also reads, and of an update goes."""
    lines = [_row([f"kernels of {card.name.removeprefix('NVIDIA ')}", "calls", "ms"]), "|---" * 3 + "|"]
    for work, check in (("decode step", "profile"), ("mixed step", "tools"), ("update", "profile")):
        named = [re.fullmatch(rf"{work}: (.*), ([\d.]+) calls", one.name) for one in card.figures(check)]
        kernels = [(one, found) for one, found in zip(card.figures(check), named, strict=True) if found]
        for figure, found in kernels[:KERNELS]:
            lines.append(_row([f"{work}: `{found[1]}`", found[2], as_number(figure.value)]))
    return "\n".join(lines) if len(lines) > 2 else ""


def _plan(cards: Sequence[Measured]) -> str:
    """Planned over measured seconds."""
    ratios: dict[str, dict[str, str]] = {}
    for card in cards:
        if (known := planned_card(card.name)) is None:
            continue
        for one in compared(found_in(list(card.outcomes.values())), known):
            shown = f"{one.planned:.3g} s, {one.measured:.3g} s: {one.planned / one.measured:.2f}"
            ratios.setdefault(one.what, {})[card.name] = shown
    if not ratios:
        return ""
    names = [card.name for card in cards]
    lines = [_row(["planned and measured, and their ratio", *(name.removeprefix("NVIDIA ") for name in names)])]
    lines += ["|---" * (1 + len(names)) + "|"]
    return "\n".join([*lines, *(_row([what, *(row.get(name, "") for name in names)]) for what, row in ratios.items())])


def _facts(cards: Sequence[Measured]) -> Iterator[str]:
    """With what each card was measured, and what of it was not."""
    for card in cards:
        by_facts: dict[str, list[str]] = {}
        for check, outcome in card.outcomes.items():
            versions, driver = outcome.facts["versions"], outcome.facts.get("driver", {})
            named = [f"{name} {versions[name]}" for name in ("torch", "transformers", "triton") if name in versions]
            named += [f"driver {driver['driver_version']}"] if "driver_version" in driver else []
            key = f"{', '.join(named)}, {outcome.facts['date']}, at {outcome.facts['commit']}"
            by_facts.setdefault(key, []).append(check)
        for facts, checks in by_facts.items():
            yield f"{card.name} with {facts}: {', '.join(checks)}."
        ended = {check: f"{one.status}: {one.message}" for check, one in card.outcomes.items() if one.status != "done"}
        ended |= dict.fromkeys(set(CHECKS) - set(card.outcomes), "not run")
        for check in filter(ended.get, CHECKS):
            yield f"{card.name}, `{check}` {ended[check]}."


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def measured_speeds(cards: Sequence[Measured]) -> dict[str, Shares]:
    """The plan's shares of each card that it knows."""
    known = {card.name: planned_card(card.name) for card in cards}
    return {
        found.name: measured_shares(found_in(list(card.outcomes.values())), found)
        for card in cards
        if (found := known[card.name]) is not None
    }


def with_tables(page: str, tables: str) -> str:
    """The page with these tables between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} with {END} after it")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def main() -> int:
    """Writes the page and prints the shares; 2 if a file is none of the checks."""
    try:
        cards = read_files()
    except ValueError as error:
        print(str(error).partition(";")[0], file=sys.stderr)
        return 2
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), drawn(cards)), encoding="utf-8")
    for name, shares in measured_speeds(cards).items():
        print(f'    "{name}": {shares},')
    return 0


if __name__ == "__main__":
    sys.exit(main())
