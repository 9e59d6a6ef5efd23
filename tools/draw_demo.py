"""Draw the picture of README.md: `python -m tools.draw_demo`, or with `runs/demo` from a new run of the demo.

A run's curve, its exact match and one episode, drawn by a seed from those with two different searches, are kept in
docs/assets/demo.json. The pictures are drawn from that: demo-light.svg and demo-dark.svg, and a narrow version of each.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from sleuth.runs.rollouts import read_rollouts
from sleuth.serve.conversation import answer_sentence
from sleuth.types import Episode, Group
from tools.draw_concepts import DARK, LIGHT, Picture

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
RECORD = FOLDER / "demo.json"
SEED = 0
LINE, CHARACTER = 17, 7.3
"""Height of a line of the episode and the widest width of one of its characters, in pixels."""
AUTHORS = {"template": "prompt", "env": "environment", "policy": "model: trained"}
MARK = "\n.mark { fill: var(--good); font-weight: 700; text-decoration: underline; }"


def pictures(record: Mapping[str, Any]) -> dict[str, str]:
    """SVG text by file name."""
    return {
        f"demo{width}-{scheme}.svg": draw(
            record["rewards"], record["before"], record["after"], record["episode"], colours + MARK, narrow=bool(width)
        )
        for width in ("", "-narrow")
        for scheme, colours in (("light", LIGHT), ("dark", DARK))
    }


def record_of(run: Path) -> dict[str, Any]:
    """What the pictures show of a run, from `metrics.jsonl`, `eval/*.json` and the last step of `rollouts/`."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figures = [json.loads((run / "eval" / f"{name}.json").read_text()) for name in ("base", "trained")]
    kept = ("em", "em_one_hop", "em_two_hop")
    before, after = ({name: figure[name] for name in kept} for figure in figures)
    two_hops = with_two_searches(read_rollouts(max((run / "rollouts").glob("*.parquet"))))
    rewards = [round(row["reward_mean"], 4) for row in rows if row.get("stage") == "grpo"]
    episode = episode_record(random.Random(SEED).choice(two_hops))
    return {"command": "sleuth demo", "rewards": rewards, "before": before, "after": after, "episode": episode}


def with_two_searches(groups: Sequence[Group]) -> list[Episode]:
    """The episodes of full score with two searches that differ."""
    return [
        episode
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if score.value == 1 and len(set(searches(episode))) == len(searches(episode)) == 2
    ]


def searches(episode: Episode) -> list[str]:
    """What it searched."""
    return [action.text for action in episode.trajectory.actions if action.kind == "search"]


def episode_record(episode: Episode) -> dict[str, Any]:
    """Its question, golden answers, segments by author, and the sentences that hold the answer."""
    answers = [action.text for action in episode.trajectory.actions if action.kind == "answer"]
    segments = [(segment.author, segment.text) for segment in episode.trajectory.segments]
    cited = []
    for action in (action for action in episode.trajectory.actions if action.kind == "search" and answers):
        texts = [passage.text for passage in action.passages]
        found = [(text, answer_sentence(answers[-1], text, action.text)) for text in texts]
        cited = [text[slice(*place)] for text, place in found if place][:1] or cited
    task = episode.task
    return {
        "question": task.question,
        "golden_answers": list(task.golden_answers),
        "segments": segments,
        "cited": cited,
    }


def draw(
    rewards: Sequence[float],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    episode: Mapping[str, Any],
    colours: str,
    *,
    narrow: bool,
) -> str:
    """The curve and the episode side by side, 880 pixels wide; narrow, one above the other and 400 wide."""
    width, left = (400, 400) if narrow else (880, 310)
    start, down = (16, 352) if narrow else (left + 26, 0)
    lines = episode_lines(episode, int((width - start - 16 - 12) / CHARACTER))
    height = max(350, down + 66 + len(lines) * LINE + 14)
    picture = Picture(width, height, "The demo: reward by step, exact match before and after, one episode", colours)
    _curve(picture, rewards, before, after, left, 218 if narrow else height - 152)
    picture.text(start, down + 26, "one question, two searches, one cited sentence", "strong")
    for at, (author, words) in enumerate(AUTHORS.items()):
        picture.box(start + at * 110, down + 38, 14, 14, author)
        picture.text(start + at * 110 + 20, down + 50, words, "soft small")
    draw_lines(picture, lines, start, down + 66, width - start - 16)
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


def draw_lines(picture: Picture, lines: Sequence[tuple[str, str]], x: float, y: float, width: float) -> None:
    """Draws (author, line)s below each other, each on the colour of its author, from y down. What stands between two
    MARKs is marked."""
    for author, written in groupby(lines, key=lambda line: line[0]):
        run = [line for _, line in written]
        picture.band(x, y, width, LINE * len(run), author)
        for line in run:
            parts = enumerate(escape(part) for part in line.split(EDGE))
            words = "".join(f'<tspan class="mark">{part}</tspan>' if at % 2 else part for at, part in parts)
            picture.parts.append(
                f'<text x="{x + 6:g}" y="{y + 13:g}" class="code small" xml:space="preserve">{words}</text>'
            )
            y += LINE


EDGE = "\0"


def episode_lines(episode: Mapping[str, Any], width: int) -> list[tuple[str, str]]:
    """(author, line) of the episode's text, wrapped; each tag of the policy stands on a line of its own."""
    return [
        (author, line)
        for author, text in episode["segments"]
        for part in text.replace("</think><", "</think>\n<").splitlines()
        for line in _wrapped(part.strip(), width, episode["cited"] if author == "env" else ())
    ]


def _wrapped(text: str, width: int, cited: Sequence[str]) -> Iterator[str]:
    """Lines of at most `width` characters, with an EDGE at both ends of each line's part of a cited sentence."""
    begin = next((text.index(one) for one in cited if one in text), len(text))
    stop = begin + next((len(one) for one in cited if one in text), 0)
    line: list[str] = []
    marked = False
    for word in re.finditer(r"\S+", text):
        if line and len(" ".join(line).replace(EDGE, "")) + 1 + len(word[0]) > width:
            yield " ".join(line) + EDGE * marked
            line, marked = [], False
        inside = begin <= word.start() < stop
        if inside and not marked:
            line.append(EDGE + word[0])
        elif marked and not inside:
            line[-1] += EDGE
            line.append(word[0])
        else:
            line.append(word[0])
        marked = inside
    if line:
        yield " ".join(line) + EDGE * marked


def main() -> None:
    if sys.argv[1:]:
        RECORD.write_text(
            json.dumps(record_of(Path(sys.argv[1])), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    for name, svg in pictures(json.loads(RECORD.read_text(encoding="utf-8"))).items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
