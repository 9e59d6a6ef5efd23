"""Problems answered by a model as it stands: plain completions, several samples each, read and compared by rules."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.data.reasoning import Problem, load_problems
from sleuth.engines.local.engine import LocalEngine
from sleuth.evaluation.named_model import NamedModel, load_named
from sleuth.metrics.intervals import Measured, Stratum, bootstrap_mean, mean_of_means, share
from sleuth.recipe.evaluation import ProblemsRecipe, ReasonRecipe
from sleuth.render import encode
from sleuth.rewards.reasoning import extract, same_answer, same_number
from sleuth.runs.eval_file import read_eval, write_eval
from sleuth.runs.progress import ProgressBar
from sleuth.stage_context import StageContext, StageInputs
from sleuth.types import Completion, Engine, Sampling, SleuthError, Task

SHOTS = r"""Problem: A shelf holds 4 boxes of 6 cups. Nine cups are sold. How many cups are left?
Solution: There are 4 * 6 = 24 cups. After nine are sold, 24 - 9 = 15 are left. The answer is \boxed{15}.

Problem: A train rides for 95 minutes. Then it waits for a quarter of an hour. How many minutes are that in all?
Solution: A quarter of an hour is 15 minutes. In all that are 95 + 15 = 110 minutes. The answer is \boxed{110}.

"""
"""Two worked examples of ours, for problems that are asked with two; the published ones are not printed."""
ASKED = "Problem: {text}\n{choices}Solution:"
ENDS = ("\n\nProblem:", "\nProblem:")
"""Where a model without end goes on to a problem of its own."""
DIRECTIONS = {
    "number": "",
    "boxed": "Solve the problem. Reason step by step, and put the final answer into \\boxed{}.\n\n",
    "choice": "Choose the right answer. Reason step by step, and put its letter into \\boxed{}.\n\n",
}


def require_inputs(stage: ReasonRecipe, inputs: StageInputs) -> list[Task]:
    """As `require_problems`, of a stage in a recipe."""
    return require_problems(stage, inputs.tokenizer, inputs.positions)


def run(stage: ReasonRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json` and a file for each set, unless they exist for this model; returns the model unchanged."""
    file = context.folder.eval / f"{stage.name}.json"
    if read_eval(file, model=context.model) is not None:
        return Path(context.model)
    solver = load_named(context.model, context.recipe)
    with context.folder.costing(stage.name, "asking"):
        for name, contents in reasoned(stage, solver, seed=context.recipe.seed).items():
            place = file.with_name(f"{name}.json")
            write = partial(write_eval, place, {"name": name, **contents})
            context.folder.backlog.write(f"the evaluation {name}", write)
    return Path(context.model)


def reasoned(stage: ReasonRecipe, solver: NamedModel, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The contents of each set's file (`NAME@SET`), and of the suite's, under NAME, which comes last. Raises
    SleuthError where the model's context is too short."""
    found: dict[str, dict[str, Any]] = {}
    records: list[list[dict[str, Any]]] = []
    for asked in stage.sets:
        problems = load_problems(asked.layout, asked.problems, asked.limit)
        of_set = _records(stage, solver, asked, problems, seed)
        records.append(of_set)
        figures = problem_figures(of_set, stage.samples)
        found[f"{stage.name}@{asked.layout}"] = _contents(stage, solver, figures) | {"records": of_set}
    suite = _contents(stage, solver, suite_figures(records, stage.samples))
    sets = {name.partition("@")[2]: _told(contents) for name, contents in found.items()}
    return {**found, stage.name: suite | {"sets": sets}}


def require_problems(stage: ReasonRecipe, tokenizer: PreTrainedTokenizerFast | None, holds: int) -> list[Task]:
    """The problems of all sets as questions. Raises SleuthError for a malformed row, and where prompt and answer are
    more than a model holds."""
    sets = [load_problems(asked.layout, asked.problems, asked.limit) for asked in stage.sets]
    if tokenizer is not None:
        for problems in sets:
            _context(stage, tokenizer, problems, holds)
    return [
        Task(id=problem.id, question=problem.text, golden_answers=(problem.answer,))
        for problems in sets
        for problem in problems
    ]


def prompt_of(problem: Problem) -> str:
    """What a model goes on from: two worked examples for a number, else one sentence of what to do."""
    letters = zip("ABCDEFGHIJ", problem.choices, strict=False)
    choices = "".join(f"({letter}) {choice}\n" for letter, choice in letters)
    opening = SHOTS if problem.form == "number" else DIRECTIONS[problem.form]
    return opening + ASKED.replace("{choices}", choices).replace("{text}", problem.text)


def is_right(problem: Problem, answer: str | None) -> bool:
    """Whether an extracted answer is the problem's."""
    if answer is None:
        return False
    match problem.form:
        case "choice":
            return answer == problem.answer
        case "number":
            return same_number(answer, problem.answer)
        case "boxed":
            return same_answer(answer, problem.answer, several=problem.several)


def _records(
    stage: ReasonRecipe, solver: NamedModel, asked: ProblemsRecipe, problems: Sequence[Problem], seed: int
) -> list[dict[str, Any]]:
    context = _context(stage, solver.tokenizer, problems, solver.holds)
    engine = LocalEngine(solver.model, solver.tokenizer, slots=stage.slots, context=context)
    key = (seed, zlib.crc32(asked.layout.encode()))
    with ProgressBar(f"{stage.name}@{asked.layout}", len(problems) * stage.samples) as bar:
        written = asyncio.run(_written(stage, engine, solver.tokenizer, problems, key, bar))
    return [_record(problem, of_problem) for problem, of_problem in zip(problems, written, strict=True)]


async def _written(
    stage: ReasonRecipe,
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    key: tuple[int, ...],
    bar: ProgressBar,
) -> list[list[Completion]]:
    async def one(number: int, prompt: Sequence[int], sample: int) -> Completion:
        limits = Sampling(
            max_tokens=stage.max_tokens, temperature=stage.temperature, stops=ENDS, key=(*key, number, sample, 0)
        )
        done = await engine.complete(prompt, limits)
        bar.advance()
        return done

    async def of_problem(number: int, problem: Problem) -> list[Completion]:
        prompt = encode(tokenizer, prompt_of(problem))
        return await asyncio.gather(*(one(number, prompt, sample) for sample in range(stage.samples)))

    return await asyncio.gather(*(of_problem(*numbered) for numbered in enumerate(problems)))


def _record(problem: Problem, written: Sequence[Completion]) -> dict[str, Any]:
    answers = [extract(one.text, problem.form) for one in written]
    return {
        "id": problem.id,
        "kind": problem.kind,
        "form": problem.form,
        "golden": problem.answer,
        "guess": problem.guess,
        "answers": answers,
        "right": [float(is_right(problem, answer)) for answer in answers],
        "answered": [float(answer is not None) for answer in answers],
        "cut": [float(one.stop == "length") for one in written],
        "texts": [one.text for one in written],
        "tokens": sum(len(one.tokens) for one in written),
    }


def _context(stage: ReasonRecipe, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], holds: int) -> int:
    longest = max(len(encode(tokenizer, prompt_of(problem))) for problem in problems)
    if longest + stage.max_tokens > holds:
        raise SleuthError(
            f"a prompt of {longest} tokens and max_tokens = {stage.max_tokens} are more than the {holds} positions of "
            "the model; lower max_tokens"
        )
    return longest + stage.max_tokens


def _contents(stage: ReasonRecipe, solver: NamedModel, figures: Mapping[str, Measured]) -> dict[str, Any]:
    return {
        "model": solver.name,
        **{name: figure.as_json() for name, figure in figures.items()},
        "samples": stage.samples,
        "temperature": stage.temperature,
        "max_tokens": stage.max_tokens,
    }


def _told(contents: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a set without its records."""
    return {name: value for name, value in contents.items() if isinstance(value, dict)}


# Samples of one problem count as one draw: n is the number of problems. (Intervals over samples, as in the published
# table, claim eight times the problems that there are.)

Record = Mapping[str, Any]
"""One problem: `right` (sample by sample 1 or 0), `guess`, `answered` and `cut` likewise."""


def pass_at(k: int, right: Sequence[float]) -> float:
    """The probability that one of k of these samples, drawn without replacement, is right (arXiv:2107.03374).
    `pass_at(1, [1, 0, 0, 0]) == 0.25`, `pass_at(2, [1, 0, 0, 0]) == 0.5`. Raises ValueError for more than there are."""
    count, wrong = len(right), len(right) - int(sum(right))
    if not 1 <= k <= count:
        raise ValueError(f"k = {k} of {count} samples")
    return 1 - math.comb(wrong, k) / math.comb(count, k)


def guessed_pass(k: int, guess: float) -> float:
    """Pass@k of somebody who guesses each time anew: of four choices, 0.90 in eight guesses."""
    return 1 - (1 - guess) ** k


def problem_figures(records: Sequence[Record], k: int) -> dict[str, Measured]:
    """Of one test set. `mean_at_k` and `pass_at_k`; where there are choices, what is left of them above guessing
    (`mean_over_guess`, `pass_over_guess`) and the guess itself; and the shares of samples that gave an answer and that
    their budget cut off."""
    figures = {
        f"mean_at_{k}": share([fmean(record["right"]) for record in records]),
        f"pass_at_{k}": share([pass_at(k, record["right"]) for record in records]),
        "answered": share([fmean(record["answered"]) for record in records]),
        "cut": share([fmean(record["cut"]) for record in records]),
    }
    if any(record["guess"] for record in records):
        guesses = [record["guess"] for record in records]
        lucky = [guessed_pass(k, guess) for guess in guesses]
        figures["guessed_mean"], figures["guessed_pass"] = bootstrap_mean(guesses), bootstrap_mean(lucky)
        figures["mean_over_guess"] = bootstrap_mean(
            [fmean(record["right"]) - guess for record, guess in zip(records, guesses, strict=True)]
        )
        figures["pass_over_guess"] = bootstrap_mean(
            [pass_at(k, record["right"]) - luck for record, luck in zip(records, lucky, strict=True)]
        )
    return figures


def suite_figures(sets: Sequence[Sequence[Record]], k: int) -> dict[str, Measured]:
    """The simple means over test sets, each counting alike, with a stratified bootstrap over problems."""
    means = [Stratum(values=[fmean(record["right"]) for record in records]) for records in sets]
    passes = [Stratum(values=[pass_at(k, record["right"]) for record in records]) for records in sets]
    lucky = [Stratum(values=[guessed_pass(k, record["guess"]) for record in records]) for records in sets]
    return {
        f"mean_at_{k}": mean_of_means(means),
        f"pass_at_{k}": mean_of_means(passes),
        "guessed_pass": mean_of_means(lucky),
    }
