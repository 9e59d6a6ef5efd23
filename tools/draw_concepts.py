"""Draw the pictures of docs/concepts: `python -m tools.draw_concepts`. Advantages and the tree are computed by Sleuth.

Each picture is one SVG for light and for dark pages: its colours follow the reader's scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import group_advantages
from sleuth.learn.prefix_tree import prefix_tree

FOLDER = Path(__file__).parents[1] / "docs" / "concepts"
LIGHT = """svg { --ink: #1c2430; --soft: #5b6675; --line: #8592a3; --page: #ffffff; --template: #e3e7ec; --env: #fbe3c0;
  --policy: #cfe2ff; --good: #2e8b57; --bad: #c4473a; }"""
DARK = """svg { --ink: #e6eaf0; --soft: #a7b1bf; --line: #768396; --page: #1e2129; --template: #3a414c; --env: #5d4620;
  --policy: #234a7d; --good: #58bf86; --bad: #e87a6d; }"""
EITHER = f"{LIGHT}\n@media (prefers-color-scheme: dark) {{ {DARK} }}"
"""Light or dark, by the preference of the reader's browser."""
STYLE = """
text { fill: var(--ink); font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.code { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.soft { fill: var(--soft); }
.small { font-size: 12px; }
.strong { font-weight: 600; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.arrow { stroke: var(--line); stroke-width: 1.5; fill: none; }
.head { fill: var(--line); }
"""


class Picture:
    """Shapes drawn over each other in the order in which they are added. Lengths are pixels, y goes down."""

    def __init__(self, width: int, height: int, title: str, colours: str = EITHER) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{colours}{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        ]

    def text(self, x: float, y: float, words: str, classes: str = "") -> None:
        """One line of text that begins, ends or has its middle at x."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{classes}" xml:space="preserve">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, colour: str, *, dashed: bool = False) -> None:
        """A filled rectangle, in one of the colours of the style."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="var(--{colour})" '
            f'stroke="var(--line)"{dash}/>'
        )

    def dot(self, x: float, y: float, colour: str, *, hollow: bool = False) -> None:
        """A point of a curve."""
        fill = "page" if hollow else colour
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke-width="2" fill="var(--{fill})" '
            f'stroke="var(--{colour})"/>'
        )

    def band(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle without a border."""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="var(--{colour})"/>')

    def curve(self, points: Sequence[tuple[float, float]], colour: str, thick: float) -> None:
        """A line through many points."""
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="var(--{colour})" stroke-width="{thick:g}" stroke-linejoin="round"/>'
        )

    def line(self, *points: tuple[float, float], arrow: bool = False, dashed: bool = False) -> None:
        """Straight lines from point to point."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        more = ' marker-end="url(#head)"' * arrow + ' stroke-dasharray="4 3"' * dashed
        self.parts.append(f'<path class="arrow" d="{path}"{more}/>')

    def svg(self) -> str:
        """The whole file."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def trajectory() -> str:
    """One episode, segment by segment: who wrote it, and whether the loss trains it."""
    segments = [
        ("template", ["Question: "], "no"),
        ("env", ["Where was the founder of Ashmarsh Brewery born?"], "no"),
        (
            "policy",
            ["I need the founder.", "<search>founder of Ashmarsh Brewery</search>"],
            "yes",
        ),
        (
            "env",
            ["<information>[1] Ashmarsh Brewery | Ashmarsh Brewery", "was founded by Ada Voss.</information>"],
            "no",
        ),
        ("policy", ["Now her birthplace.", "<search>Ada Voss</search>"], "yes"),
        ("env", ["<information>[1] Ada Voss | Ada Voss was born in Tarn.", "</information>"], "no"),
        ("policy", ["<answer>Tarn</answer>"], "yes"),
    ]
    height = 44 + sum(22 * len(lines) + 16 for _, lines, _ in segments)
    picture = Picture(
        760, height, "A trajectory: seven segments, each with one author; only what the policy wrote is trained"
    )
    for x, words in ((16, "author"), (104, "text, exactly as the model saw it"), (560, "trained?")):
        picture.text(x, 22, words, "soft small")
    y = 34.0
    for author, lines, trained in segments:
        deep = 22 * len(lines) + 8
        picture.box(96, y, 448, deep, author)
        picture.text(16, y + 19, author, "strong")
        for at, line in enumerate(lines):
            picture.text(106, y + 19 + 22 * at, line, "code")
        picture.text(560, y + 19, trained, "strong" if trained != "no" else "soft")
        y += deep + 8
    return picture.svg()


def group() -> str:
    """Five siblings of one question: their scores, the mean, and their advantages."""
    scores = [1.0, 0.0, None, 0.0, 1.0]
    advantages = group_advantages(scores, "grpo")
    picture = Picture(760, 340, "A group of five siblings: scores, their mean, and advantages around zero")
    picture.text(16, 26, "score of each sibling", "strong")
    picture.text(16, 190, "advantage: (score - mean) / deviation", "strong")
    mean = sum(score for score in scores if score is not None) / sum(score is not None for score in scores)
    top, base, zero = 50.0, 140.0, 264.0
    level = base - (base - top) * mean
    picture.line((40, base), (640, base))
    picture.line((40, zero), (640, zero))
    picture.line((40, level), (640, level), dashed=True)
    picture.text(648, level + 5, f"mean {mean:g}", "soft small")
    picture.text(648, zero + 5, "0", "soft small")
    for at, (score, advantage) in enumerate(zip(scores, advantages, strict=True)):
        x = 60 + at * 116
        picture.text(x + 36, 158, f"sample {at}", "soft small middle")
        if score is None or advantage is None:
            for y, words in ((base - 44, ("no score:", "judge failed")), (zero - 22, ("left out", "of the loss"))):
                picture.box(x - 4, y, 80, 44, "page", dashed=True)
                picture.text(x + 36, y + 18, words[0], "soft small middle")
                picture.text(x + 36, y + 35, words[1], "soft small middle")
            continue
        if score:
            picture.box(x, base - (base - top) * score, 72, (base - top) * score, "policy")
        picture.text(x + 36, base - 8, f"{score:g}", "middle strong")
        deep = 40 * abs(advantage)
        picture.box(x, zero - deep if advantage > 0 else zero, 72, deep, "good" if advantage > 0 else "bad")
        above = zero - deep - 6 if advantage > 0 else zero + deep + 18
        picture.text(x + 36, above, f"{advantage:+.2f}", "middle strong")
    return picture.svg()


SIBLINGS = [
    ["Question:", "Where was", "Ada born?", "<search>", "Ada", "</search>", "[1] Tarn", "<answer>", "Tarn"],
    ["Question:", "Where was", "Ada born?", "<search>", "Ada", "</search>", "[1] Tarn", "<answer>", "Ulm"],
    ["Question:", "Where was", "Ada born?", "<search>", "born", "</search>", "[1] Ulm", "<answer>", "Ulm"],
    ["Question:", "Where was", "Ada born?", "<answer>", "Ulm"],
]
"""The rows of the drawn tree; each word stands for one or a few tokens."""


def tree() -> str:
    """The siblings as rows of a padded batch, and as the tree in which each token is computed once."""
    words = sorted({word for row in SIBLINGS for word in row})
    rows = [Row(tokens=tuple(map(words.index, row)), trained=(False, *(True for _ in row[1:]))) for row in SIBLINGS]
    found = prefix_tree(collate(rows))
    dense = sum(map(len, SIBLINGS))
    longest = max(map(len, SIBLINGS))
    wide, deep = 84, 26
    picture = Picture(800, 420, f"Four siblings: {dense} tokens in rows, {len(found)} in their prefix tree")
    picture.text(16, 24, f"rows of a batch: {dense} tokens, {longest * len(rows) - dense} of padding", "strong")
    for at, row in enumerate(SIBLINGS):
        for place in range(longest):
            x, y = 16 + place * wide, 36 + at * (deep + 6)
            picture.box(
                x, y, wide - 6, deep, _author(row, place) if place < len(row) else "page", dashed=place >= len(row)
            )
            if place < len(row):
                picture.text(x + (wide - 6) / 2, y + 17, row[place], "small middle")
    top = 210
    picture.text(16, top, f"their prefix tree: {len(found)} tokens, each computed once", "strong")
    positions, parents = found.positions.tolist(), found.parents.tolist()
    levels = _levels(parents)
    authors = {}
    for row, places in zip(SIBLINGS, found.nodes.tolist(), strict=True):
        authors |= {node: _author(row, place) for place, node in enumerate(places[: len(row)])}
    spot = [(16 + position * wide, top + 16 + level * 44) for position, level in zip(positions, levels, strict=True)]
    for node, parent in enumerate(parents):
        if parent >= 0:
            (x, y), (a, b) = spot[node], spot[parent]
            picture.line((a + wide - 6, b + deep / 2), (x - 3, b + deep / 2), (x - 3, y + deep / 2), (x, y + deep / 2))
    for node, (x, y) in enumerate(spot):
        picture.box(x, y, wide - 6, deep, authors[node])
        picture.text(x + (wide - 6) / 2, y + 17, words[int(found.tokens[node])], "small middle")
    return picture.svg()


def _author(row: Sequence[str], place: int) -> str:
    if place == 0:
        return "template"
    return "env" if place < 3 or row[place].startswith("[1]") else "policy"


def _levels(parents: Sequence[int]) -> list[int]:
    """The line on which each node is drawn: a first child stays on its parent's, each further one opens a new line."""
    levels, begun, lines = [], set(), 0
    for parent in parents:
        if parent < 0 or parent not in begun:
            levels.append(levels[parent] if parent >= 0 else 0)
        else:
            lines += 1
            levels.append(lines)
        begun.add(parent)
    return levels


def token() -> str:
    """The path of a sampled token from the engine to the loss, and back as new weights."""
    steps = [
        ("engine", "samples a token", ["id, log-probability,", "version of the weights"], "engines/local/", "policy"),
        ("rollout", "appends segments", ["author = policy; env and", "template have their own"], "rollout.py", "env"),
        ("rewards", "score the group", ["a value, or missing;", "credit for single turns"], "answers/", "env"),
        ("advantages", "compare siblings", ["(score - mean) / std,", "one each"], "learn/losses.py", "template"),
        ("loss", "gathers rows", ["ratio, clip, weight; zero", "outside the policy"], "learn/losses.py", "policy"),
        ("policy", "runs the model", ["log-probability of each", "distinct token"], "learn/policy.py", "policy"),
        (
            "prefix tree",
            "packs the batch",
            ["distinct tokens once,", "within a budget"],
            "learn/prefix_tree.py",
            "template",
        ),
        ("batch", "lays out rows", ["tokens, mask, advantage,", "weight: (B, T)"], "learn/batch.py", "template"),
    ]
    picture = Picture(
        860, 332, "The way of a sampled token: engine, rollout, rewards, advantages, batch, tree, policy, loss"
    )
    wide, deep, gap = 184, 112, 32
    for at, (name, does, more, file, colour) in enumerate(steps):
        column, line = at % 4, at // 4
        x, y = 14 + column * (wide + gap), 18 + line * (deep + 64)
        picture.box(x, y, wide, deep, colour)
        picture.text(x + 12, y + 24, name, "strong")
        picture.text(x + 12, y + 44, does)
        for row, words in enumerate((*more, file)):
            picture.text(x + 12, y + 64 + 17 * row, words, f"soft small{' code' * (row == len(more))}")
        middle = y + deep / 2
        if line == 0 and column < 3:
            picture.line((x + wide, middle), (x + wide + gap - 2, middle), arrow=True)
        elif line == 1 and column < 3:
            picture.line((x + wide + gap, middle), (x + wide + 2, middle), arrow=True)
    last, first = 14 + 3 * (wide + gap) + wide / 2, 14 + wide / 2
    picture.line((last, 18 + deep), (last, 18 + deep + 62), arrow=True)
    picture.line((first, 18 + deep + 64), (first, 18 + deep + 2), arrow=True)
    picture.text(first + 10, 18 + deep + 36, "optimiser step, new weights published", "soft small")
    return picture.svg()


PICTURES = {"trajectory": trajectory, "group": group, "prefix_tree": tree, "token": token}


def main() -> None:
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
