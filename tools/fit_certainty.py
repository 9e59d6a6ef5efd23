"""Fit how sure the shipped reader is of its answers: `python -m tools.fit_certainty models/tiny-real runs/real-data`.

DATA is what tools/real_data.py wrote, with its index. Asks the model the test questions (`test.jsonl`), fits on their
answers, and writes certainty.json into its folder. Then measures it on questions about other articles
(`held_out.jsonl`), as they are and with the gold passage and near copies of it taken out of every search: what share of
the right answers is lost, and of the others withheld, at several thresholds. Prints the table of docs/tutorials/ask.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from sleuth.data.questions import load_questions
from sleuth.evaluation.certainty import Answers, Certainty, answers_in
from sleuth.evaluation.eval_session import EvalSession, open_eval_session
from sleuth.evaluation.intervals import wilson
from sleuth.read.gates import near_copies
from sleuth.retrieval.open_index import open_index
from sleuth.search.setting import SearchSetting
from sleuth.types import SleuthError, Task

SLOTS = 64
LOST = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the right answers, among those fitted on, that each threshold of the table loses."""


def ask(session: EvalSession, tasks: Sequence[Task], hidden: Mapping[str, Sequence[str]] | None = None) -> Answers:
    """Asks each question once, greedily; the `hidden` passages of a question are not found."""
    setting = replace(cast(SearchSetting, session.setting), hidden=hidden or {})
    return answers_in(replace(session, setting=setting).ask(tasks, "ask"), setting.dialect)


def taken_out(tasks: Sequence[Task], index: Path) -> dict[str, list[str]]:
    """By the id of a question its gold passages and their near copies."""
    opened = open_index(index)
    gold = {task.id: [one for name in task.gold_passages if (one := opened.passage(name))] for task in tasks}
    return {name: [copy.id for one in of for copy in (one, *near_copies(one, opened))] for name, of in gold.items()}


def withheld(certainty: Certainty, answers: Answers, *, right: bool | None = None) -> str:
    """The share of answers that are not given, of all or of those that are right or wrong. No answer is none given."""
    chosen = [signals for signals, is_right in answers if right is None or is_right == right]
    return wilson(sum(one is None or certainty.withholds(one) for one in chosen), len(chosen)).formatted()


def table(fitted: Certainty, answers: Answers, held_out: Answers, without: Answers) -> list[str]:
    """A row for each of `LOST`, in Markdown."""
    lines = ["| lost where it was fitted | right answers lost | wrong answers withheld | passage taken out: withheld |"]
    lines.append("|---|---|---|---|")
    for lost in LOST:
        certainty = fitted.losing(lost, answers)
        shares = (
            withheld(certainty, held_out, right=True),
            withheld(certainty, held_out, right=False),
            withheld(certainty, without),
        )
        lines.append(f"| {lost:g} | {' | '.join(shares)} |")
    return lines


def steps(certainty: Certainty, answers: Answers) -> list[str]:
    """For each step the share of right answers that it says, and that of other answers on it."""
    lines = ["| said to be right | right | answers |", "|---|---|---|"]
    for step in certainty.steps:
        said = wilson(step.right, step.n)
        chosen = [right for one, right in answers if one is not None and certainty.share_right(one) == said]
        lines.append(f"| {said.formatted()} | {wilson(sum(chosen), len(chosen)).formatted()} | {len(chosen):,} |")
    return lines


def likelihood_alone(answers: Answers) -> Answers:
    """The answers with the first signal alone."""
    return [(None if signals is None else signals[:1], is_right) for signals, is_right in answers]


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
        answers = ask(session, test)
        certainty = Certainty.fit(answers)
        certainty.write(asked.model)
        right = sum(is_right for _, is_right in answers)
        print(f"{asked.model}: of {len(answers):,} answers {right:,} are right: {certainty}", flush=True)
        of_others = ask(session, held_out), ask(session, held_out, taken_out(held_out, index))
    except SleuthError as error:
        sys.exit(str(error))
    print("\n".join([*table(certainty, answers, *of_others), *steps(certainty, of_others[0])]))
    alone = [likelihood_alone(of) for of in (answers, *of_others)]
    for name, fitted, (as_they_are, without) in (
        ("four signals", certainty, of_others),
        ("log-probability alone", Certainty.fit(alone[0]), alone[1:]),
    ):
        at_tenth = fitted.losing(0.1, as_they_are)
        print(f"{name}: {withheld(at_tenth, as_they_are, right=True)} lost, {withheld(at_tenth, without)} withheld")


if __name__ == "__main__":
    main()
