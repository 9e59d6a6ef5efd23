"""Fit how sure the shipped reader is of its answers: `python -m tools.fit_certainty models/tiny-real runs/real-data`.

DATA is what tools/real_data.py wrote, with its index. Asks the model the test questions (`test.jsonl`), fits on their
answers, and writes certainty.json into its folder. Then measures it on questions about other articles
(`held_out.jsonl`), as they are and with the gold passage and near copies of it taken out of every search: what share of
the right answers is lost, and of the others withheld, at several thresholds. Prints the table of docs/tutorials/ask.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sleuth.answers.answer import given_answer
from sleuth.answers.match import normalise
from sleuth.data.questions import load_questions
from sleuth.evaluation.certainty import Certainty, Signals, signals_of
from sleuth.evaluation.eval_session import EvalSession, open_eval_session
from sleuth.evaluation.intervals import wilson
from sleuth.render import Renderer
from sleuth.retrieval.open_index import open_index
from sleuth.rollout import Rollout
from sleuth.search.env import SearchEnv
from sleuth.search.setting import SearchSetting
from sleuth.types import Passage, Retriever, SleuthError, Task

SLOTS = 64
MORE = 12
"""Passages that a search finds beyond those that are shown, in place of those taken out."""
WORDS, SAME = 4, 0.4
"""A near copy has this share of the runs of so many words of the shorter of two passages."""
LOST = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the right answers, among those fitted on, that each threshold of the table loses."""

Answers = list[tuple[Signals | None, bool]]
"""The signals of each answer, None without a valid one, and whether it is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Finds what `retriever` does, but no passage of `gold` and no near copy of one."""

    retriever: Retriever
    gold: Sequence[Passage]

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = await self.retriever.search(queries, k + MORE)
        return [[passage for passage in passages if not self._has(passage)][:k] for passages in found]

    def _has(self, passage: Passage) -> bool:
        return any(passage.id == one.id or near_copies(passage.text, one.text) for one in self.gold)


def near_copies(one: str, other: str) -> bool:
    """Whether two texts share `SAME` of the runs of words of the shorter."""
    runs = _runs(one), _runs(other)
    return len(runs[0] & runs[1]) > SAME * max(1, min(map(len, runs)))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = normalise(text).split()
    return {tuple(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}


def ask(session: EvalSession, tasks: Sequence[Task], index: Path, *, take_out: bool) -> Answers:
    """Asks each question once, greedily."""
    setting, opened = session.setting, open_index(index)
    assert isinstance(setting, SearchSetting)

    def env(task: Task, key: tuple[int, int]) -> SearchEnv:
        gold = [passage for name in task.gold_passages if (passage := opened.passage(name)) is not None]
        retriever = Without(retriever=setting.retriever, gold=gold) if take_out else setting.retriever
        return SearchEnv(task, setting.dialect, setting.asked_prompt(), retriever, frame=setting.frame())

    rollout = Rollout(
        engine=session.local_engine(),
        renderer=Renderer(session.tokenizer, setting.dialect.tags),
        context=session.context,
        temperature=0.0,
        key=(0,),
    )
    answers: Answers = []
    for group in asyncio.run(rollout.groups(tasks, env, samples=1)):
        [episode] = group.episodes
        answer, outcome = given_answer(episode, setting.dialect)
        signals = None
        if answer is not None:
            signals = signals_of(group.task.question, answer, episode.trajectory, setting.dialect)
        answers.append((signals, outcome == "correct"))
    return answers


def withheld(certainty: Certainty, answers: Answers, *, right: bool | None = None) -> str:
    """The share of answers that are not given, of all or of those that are right or wrong. No answer is none given."""
    chosen = [signals for signals, is_right in answers if right is None or is_right == right]
    return wilson(sum(one is None or certainty.withholds(one) for one in chosen), len(chosen)).formatted()


def table(fitted: Certainty, answers: Answers, held_out: Answers, without: Answers) -> list[str]:
    """A row for each of `LOST`, in Markdown."""
    lines = ["| lost where it was fitted | right answers lost | wrong answers withheld | passage taken out: withheld |"]
    lines.append("|---|---|---|---|")
    for lost in LOST:
        right = sorted(fitted.weighted(signals) for signals, is_right in answers_of(answers) if is_right)
        certainty = replace(fitted, threshold=right[int(lost * len(right))])
        shares = (
            withheld(certainty, held_out, right=True),
            withheld(certainty, held_out, right=False),
            withheld(certainty, without),
        )
        lines.append(f"| {lost:g} | {' | '.join(shares)} |")
    return lines


def answers_of(answers: Answers) -> list[tuple[Signals, bool]]:
    """Those that are valid."""
    return [(signals, is_right) for signals, is_right in answers if signals is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--limit", type=int, help="ask only the first so many questions of each file")
    asked = parser.parse_args()
    try:
        index = asked.data / "index"
        session, _ = open_eval_session(str(asked.model), [], index=index, slots=SLOTS)
        test, held_out = (load_questions(asked.data / f"{name}.jsonl")[: asked.limit] for name in ("test", "held_out"))
        answers = ask(session, test, index, take_out=False)
        certainty = Certainty.fit(answers_of(answers))
        certainty.write(asked.model)
        print(
            f"{asked.model}: of {len(answers):,} answers {sum(right for _, right in answers):,} are right: {certainty}"
        )
        of_others = [ask(session, held_out, index, take_out=take_out) for take_out in (False, True)]
    except SleuthError as error:
        sys.exit(str(error))
    print("\n".join(table(certainty, answers, *of_others)))
    for step in certainty.steps:
        told = wilson(step.right, step.n)
        chosen = [right for signals, right in answers_of(of_others[0]) if certainty.share_right(signals) == told]
        print(f"| {told.formatted()} | {wilson(sum(chosen), len(chosen)).formatted()} | {len(chosen):,} |")


if __name__ == "__main__":
    main()
