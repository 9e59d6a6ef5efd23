"""Evaluates a model on reasoning problems: plain completions, several samples each, parsed and compared by rules.

Samples of one problem count as one draw, so n is the number of problems. (Intervals over samples, as in the published
table, would claim eight times as many problems.)
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.intervals import Measured, Stratum, bootstrap_mean, mean_of_means, share
from sleuth.evaluation.paired import evaluation_line
from sleuth.render import encode
from sleuth.runs.progress import ProgressBar
from sleuth.think.problems import Problem, extract, is_right, load_problems
from sleuth.think.tables import ReasonRecipe
from sleuth.training.evaluate_stage import model_to_measure, store_eval, stored_eval
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Completion, Engine, Sampling, SleuthError, Task

SHOTS = r"""Problem: A shelf holds 4 boxes of 6 cups. Nine cups are sold. How many cups are left?
Solution: There are 4 * 6 = 24 cups. After nine are sold, 24 - 9 = 15 are left. The answer is \boxed{15}.

Problem: A train rides for 95 minutes. Then it waits for a quarter of an hour. How many minutes are that in all?
Solution: A quarter of an hour is 15 minutes. In all that are 95 + 15 = 110 minutes. The answer is \boxed{110}.

"""
"""Two worked examples of our own, for problems with a number as answer; the published ones were not printed."""
OPENINGS = {
    "number": SHOTS,
    "boxed": "Solve the problem. Reason step by step, and put the final answer into \\boxed{}.\n\n",
    "choice": "Choose the right answer. Reason step by step, and put its letter into \\boxed{}.\n\n",
}
PROBLEM = "Problem: {text}\n{choices}Solution:"
ENDS = ("\n\nProblem:", "\nProblem:")
"""Stop strings, for models that go on with a new problem instead of ending."""


def require_inputs(stage: ReasonRecipe, inputs: StageInputs) -> list[Task]:
    """As `require_problems`, for a stage of a recipe."""
    tasks = require_problems(stage, inputs.tokenizer, inputs.positions)
    if inputs.tokenizer is not None and stage.cache_memory is not None:
        for problems in _sets(stage).values():
            inputs.require_cache(stage, _context(stage, inputs.tokenizer, problems, inputs.positions))
    return tasks


def run(stage: ReasonRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json` and a file for each set, unless they exist for this model; returns the model unchanged."""
    if stored_eval(context, stage.name) is not None:
        return Path(context.model)
    solver = model_to_measure(context)
    with context.folder.costing(stage.name, "asking"):
        for name, contents in solve_problems(stage, solver, seed=context.recipe.seed).items():
            store_eval(context, name, contents)
            context.folder.say(evaluation_line(name, contents))
    return Path(context.model)


def solve_problems(stage: ReasonRecipe, solver: NamedModel, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The contents of each set's file (`NAME@SET`), then those of the suite (NAME). Raises SleuthError if the model's
    context is too short."""
    problems = _sets(stage)
    context = max(_context(stage, solver.tokenizer, of_set, solver.max_positions) for of_set in problems.values())
    with solver.engine(stage, context) as engine:
        records = {layout: _records(stage, engine, solver, layout, of_set, seed) for layout, of_set in problems.items()}
    measured = {layout: problem_figures(of_set, stage.samples) for layout, of_set in records.items()}
    sets = {
        f"{stage.name}@{layout}": _contents(stage, solver, measured[layout]) | {"records": of_set}
        for layout, of_set in records.items()
    }
    suite = _contents(stage, solver, suite_figures(list(records.values()), stage.samples))
    figures_by_set = {layout: _as_json(figures) for layout, figures in measured.items()}
    return {**sets, stage.name: suite | {"sets": figures_by_set}}


def require_problems(stage: ReasonRecipe, tokenizer: PreTrainedTokenizerFast | None, max_positions: int) -> list[Task]:
    """The problems of all sets as tasks. Raises SleuthError for a malformed row, or if prompt and answer are longer
    than `max_positions` tokens."""
    sets = _sets(stage).values()
    if tokenizer is not None:
        for problems in sets:
            _context(stage, tokenizer, problems, max_positions)
    return [
        Task(id=problem.id, question=problem.text, golden_answers=(problem.answer,))
        for problems in sets
        for problem in problems
    ]


def prompt_of(problem: Problem) -> str:
    """The text that a model continues: two worked examples if the answer is a number, else one sentence of
    directions."""
    letters = zip("ABCDEFGHIJ", problem.choices, strict=False)
    choices = "".join(f"({letter}) {choice}\n" for letter, choice in letters)
    return OPENINGS[problem.form] + PROBLEM.replace("{choices}", choices).replace("{text}", problem.text)


def _sets(stage: ReasonRecipe) -> dict[str, list[Problem]]:
    """The problems by layout."""
    return {source.layout: load_problems(source.layout, source.problems, source.limit) for source in stage.sets}


def _context(
    stage: ReasonRecipe, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], max_positions: int
) -> int:
    """The tokens of the longest prompt and answer."""
    longest = max(len(encode(tokenizer, prompt_of(problem))) for problem in problems)
    if longest + stage.max_tokens > max_positions:
        raise SleuthError(
            f"a prompt of {longest} tokens and max_tokens = {stage.max_tokens} are more than the "
            f"{max_positions} positions of the model; lower max_tokens"
        )
    return longest + stage.max_tokens


def _records(
    stage: ReasonRecipe,
    engine: Engine,
    solver: NamedModel,
    layout: str,
    problems: Sequence[Problem],
    seed: int,
) -> list[dict[str, Any]]:
    """A record of each problem, with its samples."""

    async def one(number: int, prompt: Sequence[int], sample: int) -> Completion:
        limits = Sampling(
            max_tokens=stage.max_tokens,
            temperature=stage.temperature,
            stops=ENDS,
            key=(seed, zlib.crc32(layout.encode()), number, sample, 0),
        )
        completion = await engine.complete(prompt, limits)
        bar.advance()
        return completion

    async def sample_all(number: int, problem: Problem) -> list[Completion]:
        prompt = encode(solver.tokenizer, prompt_of(problem))
        return await asyncio.gather(*(one(number, prompt, sample) for sample in range(stage.samples)))

    async def complete_all(mine: Sequence[Problem], first: int) -> list[list[Completion]]:
        return await asyncio.gather(*(sample_all(*numbered) for numbered in enumerate(mine, first)))

    total = len(problems) * stage.samples
    with ProgressBar(f"{stage.name}@{layout}", total, silent=not solver.ranks.first) as bar:
        completions = solver.ranks.dealt(problems, lambda mine, first: asyncio.run(complete_all(mine, first)))
    return [_record(problem, samples) for problem, samples in zip(problems, completions, strict=True)]


def _record(problem: Problem, completions: Sequence[Completion]) -> dict[str, Any]:
    answers = [extract(one.text, problem.form) for one in completions]
    right = [float(is_right(problem, answer)) for answer in answers]
    k = len(completions)
    return {
        "id": problem.id,
        "kind": problem.kind,
        "form": problem.form,
        "golden": problem.answer,
        "guess": problem.guess,
        "answers": answers,
        "right": right,
        "answered": [float(answer is not None) for answer in answers],
        "cut": [float(one.stop == "length") for one in completions],
        "texts": [one.text for one in completions],
        "tokens": sum(len(one.tokens) for one in completions),
        "figures": {f"mean_at_{k}": fmean(right), f"pass_at_{k}": pass_at(k, right)},  # by which sweeps pair arms
    }


def _as_json(figures: Mapping[str, Measured]) -> dict[str, Any]:
    return {name: figure.as_json() for name, figure in figures.items()}


def _contents(stage: ReasonRecipe, solver: NamedModel, figures: Mapping[str, Measured]) -> dict[str, Any]:
    settings = {"samples": stage.samples, "temperature": stage.temperature, "max_tokens": stage.max_tokens}
    return {"model": solver.name, **_as_json(figures), **settings}


# -- the figures -------------------------------------------------------------------------------------------------------

Record = Mapping[str, Any]
"""One problem: `right`, `answered` and `cut` (1 or 0 for each sample) and `guess` (the chance of guessing right)."""


def pass_at(k: int, right: Sequence[float]) -> float:
    """The probability that one of k of these samples, drawn without replacement, is right (arXiv:2107.03374).
    `pass_at(1, [1, 0, 0, 0]) == 0.25`, `pass_at(2, [1, 0, 0, 0]) == 0.5`. Raises ValueError unless 1 <= k <= the number
    of samples."""
    count, wrong = len(right), len(right) - int(sum(right))
    if not 1 <= k <= count:
        raise ValueError(f"k = {k} of {count} samples")
    return 1 - math.comb(wrong, k) / math.comb(count, k)


def guessed_pass(k: int, guess: float) -> float:
    """Pass@k of k independent guesses that are right with probability `guess`: 0.90 for four choices and k = 8."""
    return 1 - (1 - guess) ** k


def problem_figures(records: Sequence[Record], k: int) -> dict[str, Measured]:
    """The figures of one test set: `mean_at_k` and `pass_at_k`; for problems with choices, the same for guesses
    (`guessed_mean`, `guessed_pass`) and the differences (`mean_over_guess`, `pass_over_guess`); and the shares of
    samples with an answer (`answered`) and cut off by `max_tokens` (`cut`)."""
    means = [fmean(record["right"]) for record in records]
    passes = [pass_at(k, record["right"]) for record in records]
    figures = {
        f"mean_at_{k}": share(means),
        f"pass_at_{k}": share(passes),
        "answered": share([fmean(record["answered"]) for record in records]),
        "cut": share([fmean(record["cut"]) for record in records]),
    }
    guesses = [record["guess"] for record in records]
    if any(guesses):
        lucky = [guessed_pass(k, guess) for guess in guesses]
        figures["guessed_mean"], figures["guessed_pass"] = bootstrap_mean(guesses), bootstrap_mean(lucky)
        for name, values, chances in (("mean", means, guesses), ("pass", passes, lucky)):
            over = [value - chance for value, chance in zip(values, chances, strict=True)]
            figures[f"{name}_over_guess"] = bootstrap_mean(over)
    return figures


def suite_figures(sets: Sequence[Sequence[Record]], k: int) -> dict[str, Measured]:
    """The unweighted means over test sets, with a stratified bootstrap over problems."""
    means = [Stratum(values=[fmean(record["right"]) for record in records]) for records in sets]
    passes = [Stratum(values=[pass_at(k, record["right"]) for record in records]) for records in sets]
    lucky = [Stratum(values=[guessed_pass(k, record["guess"]) for record in records]) for records in sets]
    return {
        f"mean_at_{k}": mean_of_means(means, outcomes=True),
        f"pass_at_{k}": mean_of_means(passes, outcomes=True),
        "guessed_pass": mean_of_means(lucky),
    }
