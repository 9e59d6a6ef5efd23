"""Episodes of the search environment, told in a few words."""

from __future__ import annotations

import asyncio

from sleuth.types import Action, Author, Episode, Group, Passage, Reward, Score, Segment, Task, Trajectory

Part = tuple[Author, str]


def results(text: str) -> Part:
    """What the environment shows after a search."""
    return "env", f"\n<information>\n[1] {text}\n</information>\n"


def episode_of(
    *parts: Part,
    golden: str = "Paris",
    stop: str = "answered",
    actions: tuple[Action, ...] = (),
    prompt: str = "Question: which city?\n",
) -> Episode:
    task = Task(id="q", question="which city?", golden_answers=(golden,))
    told: tuple[Part, ...] = (("template", prompt), *parts)
    segments = tuple(Segment(author=author, tokens=(), text=text) for author, text in told)
    return Episode(task=task, sample=0, trajectories=(Trajectory(segments=segments, actions=actions, stop=stop),))


def looked_up(passage: str, last_turn: str, *, shown: str | None = None, golden: str = "Paris") -> Episode:
    """One search that found one passage, of which `shown` could be seen, and a last turn."""
    found = Action(kind="search", text="x", passages=(Passage(id="1", title="Cities", text=passage),))
    return episode_of(
        ("policy", "<think>a</think><search>x</search>"),
        results(passage if shown is None else shown),
        ("policy", last_turn),
        golden=golden,
        actions=(found, Action(kind="answer", text="")),
    )


def score_of(reward: Reward, episode: Episode) -> Score:
    [score] = asyncio.run(reward(Group(task=episode.task, episodes=(episode,))))
    return score
