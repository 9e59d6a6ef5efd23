"""Draw the episodes of README.md and docs/gallery.md: `python -m tools.draw_episodes`.

They are kept in docs/assets/episodes.json, each with what it is of. `python -m tools.draw_episodes NAME FILE` takes one
anew, drawn by a seed from those of its kind: of a file of rollouts (`cited`: of an evaluation, `gamed`: of rows).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from sleuth.answers.factory import reward_of
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.red_team import _episode as red_team_episode
from sleuth.cite.red_team import honest_answer, tricks_on
from sleuth.cite.tables import RefineEnvRecipe
from sleuth.data.questions import load_questions
from sleuth.judges.factory import JudgePool
from sleuth.runs.rollouts import read_rollouts
from sleuth.serve.conversation import answer_sentence, quoted_sentence
from sleuth.types import Episode, Group, Score, Task
from tools.draw_concepts import DARK, EITHER, LIGHT, Picture

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
RECORDS = FOLDER / "episodes.json"
LINE, CHARACTER = 17, 7.3
"""Height of a line of an episode and the widest width of one of its characters, in pixels."""
AUTHORS = {"template": "prompt", "env": "environment", "policy": "model"}
MARK = "\n.mark { fill: var(--good); font-weight: 700; text-decoration: underline; }"
EDGE = "\0"
"""Stands at both ends of what is marked in a line."""
SHOWN = 3
"""Lines of a long result that are shown beside those with the cited sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which episodes of a run a name stands for."""

    fits: Callable[[Episode, Score], bool]
    seed: int = 0


def _searches(episode: Episode) -> list[str]:
    return [action.text for action in episode.trajectory.actions if action.kind == "search"]


def _two(episode: Episode, score: Score) -> bool:
    return score.value == 1 and len(set(_searches(episode))) == len(_searches(episode)) == 2


def _abstains(episode: Episode) -> bool:
    return "does not" in episode.trajectory.policy_text.rpartition("<answer>")[2]


WANTED = {
    "demo": Wanted(fits=_two, seed=1),
    "search": Wanted(fits=lambda episode, score: score.value == 1 and len(_searches(episode)) == 1),
    "two_hops": Wanted(fits=_two, seed=1),
    "wrong": Wanted(fits=lambda episode, score: score.value == 0 and len(_searches(episode)) == 2),
    "thought": Wanted(fits=lambda episode, score: (score.value or 0) > 2),
    "refined": Wanted(
        fits=lambda episode, score: (score.value or 0) > 0.9 and episode.trajectory.policy_text.count("<snippet") > 1
    ),
    "abstained": Wanted(fits=lambda episode, score: (score.value or 0) > 0.9 and _abstains(episode)),
}


def take(name: str, file: Path) -> dict[str, Any]:
    """An episode of that name, drawn by its seed."""
    if name == "cited":
        return _of_evaluation(json.loads(file.read_text(encoding="utf-8")))
    if name == "gamed":
        return _gamed(file)
    wanted = WANTED[name]
    pairs = [
        (episode, score)
        for group in read_rollouts(file)
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if wanted.fits(episode, score)
    ]
    if not pairs:
        sys.exit(f"{file}: has no episode of the kind {name}")
    episode, score = random.Random(wanted.seed).choice(pairs)
    segments = [(segment.author, segment.text) for segment in episode.trajectory.segments]
    answers = [action.text for action in episode.trajectory.actions if action.kind == "answer"]
    cited: list[str] = []
    for action in (action for action in episode.trajectory.actions if action.kind == "search" and answers):
        texts = [passage.text for passage in action.passages]
        found = [(text, answer_sentence(answers[-1], text, action.text)) for text in texts]
        cited = [text[slice(*place)] for text, place in found if place][:1] or cited
    return _record(segments, cited, score.value, episode.task.golden_answers)


def _record(
    segments: Sequence[Any], cited: Sequence[str], score: float | None, golden: Sequence[str]
) -> dict[str, Any]:
    return {"segments": segments, "cited": cited, "score": score, "golden_answers": list(golden)}


def _of_evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """A right answer with its quotation, of the records of an evaluation."""
    right = [record for record in evaluation["records"] if record["em"] == 1 and record.get("cites")]
    record = random.Random(0).choice(right)
    segments = [(segment["author"], segment["text"]) for segment in record["segments"]]
    answer, _, quoted = segments[-1][1].rpartition("<answer>")[2].partition(" [")
    words = (answer + quoted.partition("]")[0]).strip()
    places = [(text, quoted_sentence(words, text)) for author, text in segments if author == "env"]
    cited = [text[slice(*place)] for text, place in places if place]
    return _record(segments, cited[:1], record["em"], record["golden_answers"])


def _gamed(rows: Path) -> dict[str, Any]:
    """The red team's copy of every snippet, for a row of the world, with what two sums of rewards pay for it and for
    the row's own answer."""
    tasks = [task for task in load_questions(rows) if (honest := honest_answer(task)) and honest.claims]
    task = random.Random(0).choice(tasks)
    honest = honest_answer(task)
    assert honest is not None
    setting = RefineEnvRecipe.model_validate({"kind": "refine", "prompt": "bare"}).setting(None, [task])
    turns = [setting.dialect.answer.around(text) for text in (honest.text, tricks_on(honest)["copied"])]
    episodes = [_episode_of(task, setting, turn, at) for at, turn in enumerate(turns)]
    paid = {}
    with JudgePool(Path("verdicts.sqlite")) as pool:  # a lexical judge's are kept nowhere
        for kind in ("recommended", "additive"):
            recipe = CitationRecipe.model_validate({"kind": "citation", "sum": kind})
            reward = reward_of([recipe], setting.dialect, None, pool)
            scores = asyncio.run(reward(Group(task=task, episodes=tuple(episodes))))
            paid[kind] = [score.value for score in scores]
    segments = [(segment.author, segment.text) for segment in episodes[1].trajectory.segments]
    return _record(segments, (), paid["additive"][1], task.golden_answers) | {"paid": paid}


def _episode_of(task: Task, setting: Any, turn: str, sample: int) -> Episode:
    """As the red team plays a turn that no model wrote."""
    return asyncio.run(red_team_episode(task, setting, turn, sample=sample))


def pictures(records: Mapping[str, Any]) -> dict[str, str]:
    """SVG text by file name: `demo` apart for light and for dark pages, as README.md asks for it."""
    drawn = {}
    for name, record in records.items():
        for width in ("", "-narrow"):
            colours = {"-light": LIGHT, "-dark": DARK} if name == "demo" else {"": EITHER}
            for scheme, colour in colours.items():
                drawn[f"{name}{width}{scheme}.svg"] = draw(record, colour, narrow=bool(width))
    return drawn


def draw(record: Mapping[str, Any], colours: str, *, narrow: bool) -> str:
    """One episode with the author of every token, 760 pixels wide, or 400."""
    width = 400 if narrow else 760
    lines = list(episode_lines(record, int((width - 12) / CHARACTER)))
    picture = Picture(width, 44 + len(lines) * LINE + 8, record["title"], colours + MARK)
    picture.text(4, 16, record["title"], "strong")
    for at, (author, words) in enumerate(AUTHORS.items()):
        picture.box(4 + at * 120, 24, 12, 12, author)
        picture.text(22 + at * 120, 35, words, "soft small")
    y = 44
    for author, written in groupby(lines, key=lambda line: line[0]):
        run = [line for _, line in written]
        picture.band(0, y, width, LINE * len(run), author if author in AUTHORS else "template")
        for line in run:
            parts = enumerate(escape(part) for part in line.split(EDGE))
            words = "".join(f'<tspan class="mark">{part}</tspan>' if at % 2 else part for at, part in parts)
            picture.parts.append(f'<text x="6" y="{y + 13}" class="code small" xml:space="preserve">{words}</text>')
            y += LINE
    return picture.svg()


def episode_lines(record: Mapping[str, Any], width: int) -> Iterator[tuple[str, str]]:
    """(author, line) of the episode's text, wrapped; each tag of the policy stands on a line of its own. Of a long
    result the lines around the cited sentence are left."""
    for author, text in record["segments"]:
        for part in re.sub(r"(?<=>)(?=<(?:search|answer)>)", "\n", text).splitlines():
            lines = list(_wrapped(part.strip(), width, record["cited"] if author == "env" else ()))
            kept = {at for at, line in enumerate(lines) if EDGE in line} | {*range(SHOWN)}
            if author != "env" or len(lines) <= SHOWN + 2:
                kept = {*range(len(lines))}
            for at, line in enumerate(lines):
                if at in kept:
                    yield author, line
                elif at - 1 in kept:
                    yield author, "..."


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
        if marked and not inside:
            line[-1] += EDGE
        line.append(EDGE * (inside and not marked) + word[0])
        marked = inside
    if line:
        yield " ".join(line) + EDGE * marked


def main() -> None:
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    if sys.argv[1:]:
        name, file = sys.argv[1:]
        records[name] = records.get(name, {"title": name, "of": file}) | take(name, Path(file))
        RECORDS.write_text(json.dumps(records, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for name, svg in pictures(records).items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
