"""Draw the sizes and speeds of indexes, and print their table: `python -m tools.draw_index_sizes`.

Reads docs/assets/index_sizes.json, the figures as they were measured, and writes index-sizes-light.svg and -dark.svg
beside it, with a narrow version of each. The table is the one of docs/how-to/retrieval.md.
"""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from typing import Any

from tools.draw_concepts import DARK, LIGHT, Picture

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
FIGURES = FOLDER / "index_sizes.json"
COLOURS = {"bm25": "good", "dense": "bad", "hybrid": "ink"}
PANELS = (("disk_gb", "disk, GB"), ("build_s", "building, processor seconds"), ("p50_ms", "a query, median ms"))
COLUMNS = ("index", "passages", "disk", "memory", "build", "queries a second", "p50, p99", "recall@3")
HEIGHT, TOP, BASE = 274, 76, 244

Row = dict[str, Any]


def read_rows() -> list[Row]:
    """A row for each kind and size of an index: `{"index": "bm25", "passages": 1000000, "disk_gb": 0.8, ...}`. A figure
    is a number, None if there is none, or `{"about": number}` if it was computed from the others."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def pictures(rows: list[Row]) -> dict[str, str]:
    """SVG text by file name."""
    return {
        f"index-sizes{'-narrow' if narrow else ''}-{scheme}.svg": draw(rows, colours, narrow=narrow)
        for narrow in (False, True)
        for scheme, colours in (("light", LIGHT), ("dark", DARK))
    }


def draw(rows: list[Row], colours: str, *, narrow: bool) -> str:
    """The panels side by side, 880 pixels wide; narrow, one below the other and 400 wide."""
    width, height = (400, HEIGHT * len(PANELS)) if narrow else (880, HEIGHT)
    picture = Picture(width, height, "Disk, building and query time of BM25, dense and hybrid indexes by size", colours)
    for at, (name, colour) in enumerate(COLOURS.items()):
        picture.line((16 + at * 80, 16), (36 + at * 80, 16))
        picture.curve([(16 + at * 80, 16), (36 + at * 80, 16)], colour, 3)
        picture.text(42 + at * 80, 20, name, "small")
    picture.text(
        16 if narrow else 270, 38 if narrow else 20, "hollow: computed from the others, not measured", "soft small"
    )
    panel = width if narrow else width / len(PANELS)
    for at, (key, title) in enumerate(PANELS):
        _panel(picture, rows, key, title, (0 if narrow else at * panel, at * HEIGHT if narrow else 0), panel)
    return picture.svg()


def _panel(picture: Picture, rows: list[Row], key: str, title: str, corner: tuple[float, float], width: float) -> None:
    """One figure over the number of passages, both in powers of ten."""
    left, right = corner[0] + 62, corner[0] + width - 26
    top, base = corner[1] + TOP, corner[1] + BASE
    sizes = sorted({row["passages"] for row in rows})
    values = [number(row[key]) for row in rows if row[key] is not None]
    first, last = int(log10(min(values)) // 1), int(-(-log10(max(values)) // 1))
    across = (right - left) / log10(sizes[-1] / sizes[0])
    up = (base - top) / (last - first)
    picture.text(corner[0] + 16, top - 12, title, "strong small")
    for power in range(first, last + 1):
        y = base - (power - first) * up
        picture.text(left - 8, y + 4, f"{10.0**power:,g}", "soft small end")
        picture.line((left, y), (right, y), dashed=power > first)
    for size in sizes:
        x = left + across * log10(size / sizes[0])
        place = "middle" if size != sizes[-2] else "end"
        picture.text(x, base + 18, short(size), f"soft small {place}")
    for name, colour in COLOURS.items():
        points = [
            (left + across * log10(row["passages"] / sizes[0]), base - up * (log10(number(row[key])) - first), row[key])
            for row in rows
            if row["index"] == name and row[key] is not None
        ]
        picture.curve([(x, y) for x, y, _ in points], colour, 2)
        for x, y, figure in points:
            picture.dot(x, y, colour, hollow=isinstance(figure, dict))


def table(rows: list[Row]) -> list[str]:
    """The lines of the table in markdown; what was computed has a tilde."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        times = ", ".join(shown(row[key]) for key in ("p50_ms", "p99_ms"))
        cells = (
            row["index"],
            f"{row['passages']:,}",
            shown(row["disk_gb"], " GB"),
            shown(row["memory_mb"], " MB"),
            shown(row["build_s"], " s"),
            shown(row["per_second"]),
            f"{times} ms",
            shown(row["recall"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shown(figure: Any, unit: str = "") -> str:
    """`0.80 GB`, `~17 GB` if it was computed, a dash if there is none."""
    if figure is None:
        return "-"
    value = number(figure)
    digits = max(0, 2 - int(log10(value) // 1)) if value < 100 else 0
    return f"{'~' * isinstance(figure, dict)}{value:,.{digits}f}{unit}"


def number(figure: Any) -> float:
    """The number of a figure."""
    return float(figure["about"] if isinstance(figure, dict) else figure)


def short(size: int) -> str:
    """`20 k`, `1 M`."""
    return f"{size / 1e6:g} M" if size >= 1e6 else f"{round(size / 1000):g} k"


def main() -> None:
    rows = read_rows()
    for name, svg in pictures(rows).items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
