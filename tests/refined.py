"""Episodes of a refiner, told in a few words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sleuth.cite.citation_reward import CitationRecipe, CitationReward
from sleuth.cite.dialect import REFINERS
from sleuth.judges.lexical import LexicalJudge
from sleuth.types import Action, Episode, Evidence, Group, Passage, Score, Segment, StatedClaim, Task, Trajectory

SNIPPETS = {
    "a1": "Ada Voss was born in Tarn in 1874.",
    "b2": "Ada Voss was a painter who worked for Kelholt Mills.",
    "c3": "Ida Voss was born in Velde in 1880.",
}
BORN = "<snippet id=a1>Ada Voss was born in Tarn.</snippet>"


def refined(
    answer: str,
    *,
    snippets: Mapping[str, str] = SNIPPETS,
    golden: tuple[str, ...] = ("Tarn",),
    answerable: bool | None = True,
    stated: tuple[StatedClaim, ...] = (),
    before: str = "",
    stop: str = "answered",
) -> Episode:
    """What a refiner wrote, its `answer` in tags, behind `before`."""
    evidence = Evidence(
        reasoning="I need her birthplace.",
        output="".join(f"<snippet id={id_}>{text}</snippet>" for id_, text in snippets.items()),
        snippets=tuple(Passage(id=id_, title="", text=text) for id_, text in snippets.items()),
        answerable=answerable,
        stated=stated,
    )
    task = Task(id="q", question="where was Ada Voss born?", golden_answers=golden, evidence=evidence)
    closing = "</answer>" if stop == "answered" else ""
    written = f"{before}<answer>{answer}{closing}"
    trajectory = Trajectory(
        segments=(
            Segment(author="template", tokens=(), text=f"{task.question}\n{evidence.output}\n"),
            Segment(author="policy", tokens=(), text=written),
        ),
        actions=(Action(kind="answer" if stop == "answered" else "invalid", text=answer),),
        stop=stop,
    )
    return Episode(task=task, sample=0, trajectories=(trajectory,))


def citation_reward(mode: str = "answer_only", **table: object) -> CitationReward:
    """The reward of a recipe with these keys, by the lexical judge."""
    return CitationReward(REFINERS[mode], LexicalJudge(), CitationRecipe.model_validate({"kind": "citation"} | table))


def scored(*episodes: Episode, reward: CitationReward | None = None) -> list[Score]:
    """By our recommended reward and the lexical judge, unless another is given."""
    reward = reward or citation_reward()
    return asyncio.run(reward(Group(task=episodes[0].task, episodes=episodes)))


def score_of(answer: str, **told: object) -> Score:
    [score] = scored(refined(answer, **told))
    return score


def value_of(answer: str, **told: object) -> float:
    value = score_of(answer, **told).value
    assert value is not None
    return value
