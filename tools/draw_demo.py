"""Draw the picture of README.md from a run of the demo: `python -m tools.draw_demo runs/demo`.

Writes docs/assets/demo-light.svg and demo-dark.svg, and a narrow version of each for telephones: the reward curve,
exact match before and after, and one recorded episode with the author of every token.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sleuth.runs.rollouts import read_rollouts
from sleuth.types import Episode, Group
from tools.draw_concepts import DARK, LIGHT, Picture

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
LINE, CHARACTER = 17, 7.3
"""Height of a line of the episode and the widest width of one of its characters, in pixels."""
AUTHORS = {"template": "prompt", "env": "environment", "policy": "model: trained"}


def pictures(run: Path) -> dict[str, str]:
    """SVG text by file name, from `metrics.jsonl`, `eval/*.json` and the last step of `rollouts/`."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rewards = [row["reward_mean"] for row in rows if row.get("stage") == "grpo"]
    before, after = (json.loads((run / "eval" / f"{name}.json").read_text()) for name in ("base", "trained"))
    episode = shortest_right(read_rollouts(max((run / "rollouts").glob("*.parquet"))))
    return {
        f"demo{width}-{scheme}.svg": draw(rewards, before, after, episode, colours, narrow=bool(width))
        for width in ("", "-narrow")
        for scheme, colours in (("light", LIGHT), ("dark", DARK))
    }


def shortest_right(groups: Sequence[Group]) -> Episode:
    """The episode of full score with two searches whose longest line is shortest."""
    found = [
        episode
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if score.value == 1 and sum("<search>" in part.text for part in episode.trajectory.segments) == 2
    ]
    return min(
        found,
        key=lambda episode: max(len(line) for part in episode.trajectory.segments for line in part.text.split("\n")),
    )


def draw(
    rewards: Sequence[float],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    episode: Episode,
    colours: str,
    *,
    narrow: bool,
) -> str:
    """The curve and the episode side by side, 880 pixels wide; narrow, one above the other and 400 wide."""
    width, left = (400, 400) if narrow else (880, 310)
    start, down = (16, 352) if narrow else (left + 26, 0)
    lines = _lines(episode, int((width - start - 16 - 12) / CHARACTER))
    height = max(350, down + 66 + len(lines) * LINE + 14)
    picture = Picture(width, height, "The demo: reward by step, exact match before and after, one episode", colours)
    _curve(picture, rewards, before, after, left, 218 if narrow else height - 152)
    picture.text(start, down + 26, "an episode of the last step, by author", "strong")
    for at, (author, words) in enumerate(AUTHORS.items()):
        picture.box(start + at * 110, down + 38, 14, 14, author)
        picture.text(start + at * 110 + 20, down + 50, words, "soft small")
    y = down + 66
    for author, written in groupby(lines, key=lambda line: line[0]):
        run = [line for _, line in written]
        picture.band(start, y, width - start - 16, LINE * len(run), author)
        for line in run:
            picture.text(start + 6, y + 13, line, "code small")
            y += LINE
    return picture.svg()


def _curve(
    picture: Picture,
    rewards: Sequence[float],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    width: int,
    base: int,
) -> None:
    """Draws the curve in `width` pixels from the left edge, with the axis of steps at `base`, and the table below
    it."""
    left, right, top = 44, width - 16, 44
    picture.text(16, 26, "mean reward of each step", "strong")
    for value in (0, 0.5, 1):
        y = base - (base - top) * value
        picture.text(left - 8, y + 4, f"{value:g}", "soft small end")
        picture.line((left, y), (right, y), dashed=value > 0)
    for step in (1, len(rewards)):
        x = left + (right - left) * (step - 1) / max(1, len(rewards) - 1)
        picture.text(x, base + 18, f"step {step}" if step == 1 else str(step), f"soft small{' end' * (step > 1)}")
    points = [
        (left + (right - left) * at / max(1, len(rewards) - 1), base - (base - top) * reward)
        for at, reward in enumerate(rewards)
    ]
    picture.curve(points, "line", 1)
    smooth = [
        (x, sum(y for _, y in points[max(0, at - 5) : at + 6]) / len(points[max(0, at - 5) : at + 6]))
        for at, (x, _) in enumerate(points)
    ]
    picture.curve(smooth, "good", 3)
    count = f"{before['em']['n']:,}"
    picture.text(16, base + 50, f"exact match on {count} unseen questions", "strong small")
    columns = (16, 150, 230)
    for at, name in enumerate(("", "before", "after")):
        picture.text(columns[at], base + 72, name, "soft small")
    for at, (name, key) in enumerate((("all", "em"), ("one search needed", "em_one_hop"), ("two", "em_two_hop"))):
        for column, words in zip(
            columns, (name, f"{before[key]['value']:.3f}", f"{after[key]['value']:.3f}"), strict=True
        ):
            picture.text(column, base + 90 + 18 * at, words, "small" if column == 16 else "small strong")


def _lines(episode: Episode, width: int) -> list[tuple[str, str]]:
    """(author, line) of the episode's text, wrapped; each tag of the policy stands on a line of its own."""
    return [
        (segment.author, line)
        for segment in episode.trajectory.segments
        for part in segment.text.replace("</think><", "</think>\n<").splitlines()
        for line in textwrap.wrap(part.strip(), width)
    ]


def main() -> None:
    for name, svg in pictures(Path(sys.argv[1])).items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
