"""The win rate of one model over another: a judge compares one continuation of each held-out prefix by each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sleuth.answers.factory import judges_in
from sleuth.data.excerpts import excerpts_of
from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.intervals import paired_bootstrap, share
from sleuth.evaluation.judge_exam import require_accurate
from sleuth.evaluation.paired import evaluation_line
from sleuth.evaluation.significance import mcnemar
from sleuth.judges.factory import JudgePool
from sleuth.recipe import Recipe
from sleuth.render import load_tokenizer
from sleuth.runs.progress import ProgressBar
from sleuth.think.comparisons import PAIR_CRITERION, continuation, pair_judge_of, shown_to
from sleuth.think.pools import continuations, require_pools
from sleuth.think.preference_tables import WinRateRecipe
from sleuth.think.suffix_reward import ends_right
from sleuth.training.evaluate_stage import model_to_measure, store_eval, stored_eval
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Pair, PairJudge, Sampling, Segment, SleuthError, Task, Verdict

AT_ONCE = 64
"""Prefixes per step of the progress bar."""


def require_inputs(stage: WinRateRecipe, inputs: StageInputs) -> list[Task]:
    """The texts. Raises SleuthError if they do not fit the model, cannot be judged, or are other tokens to the other
    model."""
    against = _base_of(inputs.recipe, inputs.index)
    if inputs.stage_tokenizer is not None:
        _require_same_tokens("the run's model", inputs.stage_tokenizer, against, load_tokenizer(against))
    inputs.require_cache(stage, stage.data.prefix_tokens + stage.data.suffix_tokens)
    return require_pools(stage, inputs.tokenizer, inputs.positions)


def _base_of(recipe: Recipe, index: int) -> str:
    if not recipe.model:
        raise SleuthError(
            f"stage.{index} (win_rate): the recipe starts from random weights, so there is no base to compare with; "
            "`sleuth win-rate` compares any two models"
        )
    return recipe.model


def _require_same_tokens(
    name: str, tokenizer: PreTrainedTokenizerFast, other: str, theirs: PreTrainedTokenizerFast
) -> None:
    if tokenizer.get_vocab() != theirs.get_vocab():
        raise SleuthError(
            f"{name} and {other} have different tokenizers: their prefixes would not be the same. Compare with a model "
            "of the same tokens; `tokens` of a supervised stage adds some"
        )


def run(stage: WinRateRecipe, context: StageContext) -> Path:
    """Write `eval/NAME.json`, unless it exists for these models; returns the model unchanged."""
    against = _base_of(context.recipe, context.index)
    if stored_eval(context, stage.name, against=against) is not None:
        return Path(context.model)
    with JudgePool(context.folder.verdicts, ranks=context.ranks) as judge_pool:
        ours, theirs = (model_to_measure(context, name) for name in (context.model, against))
        with context.folder.costing(stage.name, "asking"):
            contents = compare_writers(stage, ours, theirs, judge_pool, seed=context.recipe.seed)
    store_eval(context, stage.name, contents, "win rate")
    context.folder.say(evaluation_line(stage.name, contents))
    return Path(context.model)


def compare_writers(
    stage: WinRateRecipe, ours: NamedModel, theirs: NamedModel, judge_pool: JudgePool, *, seed: int = 0
) -> dict[str, Any]:
    """The contents of the file: the win rate of `ours` with its interval and sign test, counts of wins, ties and
    losses, and every pair. If the texts have golden answers, `right` is the share of our endings that are right, and
    `right_gain` the paired difference.

    Both models see the same tokens. Raises SleuthError if their tokenizers differ.
    """
    require_accurate(judges_in([stage], "stage"), judge_pool)
    tasks = excerpts_of(stage.data, ours.tokenizer).tasks
    _require_same_tokens(ours.name, ours.tokenizer, theirs.name, theirs.tokenizer)
    others, own = (_continue_all(writer, stage, tasks, seed) for writer in (theirs, ours))  # servers end with ours
    shown = shown_to(stage.judge)
    pairs = [
        Pair(question=task.question, first=one.text, second=other.text, evidence=shown(task), criterion=PAIR_CRITERION)
        for task, one, other in zip(tasks, own, others, strict=True)
    ]
    judge = pair_judge_of(stage, judge_pool)
    verdicts = ours.ranks.dealt(pairs, lambda mine, _: _verdicts(judge, mine))
    records = [
        {
            "id": task.id,
            "question": task.question,
            "reference": task.reference,
            "golden_answers": list(task.golden_answers),
            "ours": one.text,
            "theirs": other.text,
            "tokens": len(one.tokens) + len(other.tokens),
            "score": verdict.score,
            "reason": verdict.reason,
        }
        for task, one, other, verdict in zip(tasks, own, others, verdicts, strict=True)
    ]
    return {
        "model": ours.name,
        "against": theirs.name,
        **win_rate(verdicts),
        **_endings(tasks, own, others),
        "temperature": stage.temperature,
        "judged_by": stage.judge.model_dump(mode="json", exclude_none=True),
        "orders": stage.orders,
        "figures_of_judge": judge_pool.figures(ours.ranks),
        "records": records,
    }


def _continue_all(writer: NamedModel, stage: WinRateRecipe, tasks: Sequence[Task], seed: int) -> list[Segment]:
    """One continuation of each task; both models draw with the same keys."""
    window = stage.data.prefix_tokens + stage.data.suffix_tokens
    sampling = Sampling(
        max_tokens=stage.data.suffix_tokens, temperature=stage.temperature, stops=stage.stops, key=(seed,)
    )

    def continued(mine: Sequence[Task], first: int) -> list[Segment]:
        segments: list[Segment] = []
        name = f"continue with {Path(writer.name).name}"
        with ProgressBar(name, len(mine), silent=not writer.ranks.first) as bar:
            for at in range(0, len(mine), AT_ONCE):
                some = mine[at : at + AT_ONCE]
                found = asyncio.run(continuations(some, engine, sampling, samples=1, first_prompt=first + at))
                segments += [continuation(episode) for [episode] in found]
                bar.advance(len(some))
        return segments

    with writer.engine(stage, window) as engine:
        return writer.ranks.dealt(tasks, continued)


def _verdicts(judge: PairJudge, pairs: Sequence[Pair]) -> list[Verdict]:
    """The verdict of each pair; equal texts tie without a call of the judge."""
    differing = [pair for pair in pairs if pair.first != pair.second]
    judged = iter(asyncio.run(judge.compare(differing)) if differing else [])
    same = Verdict(score=0.5, reason="both wrote the same")
    return [same if pair.first == pair.second else next(judged) for pair in pairs]


def _endings(tasks: Sequence[Task], own: Sequence[Segment], others: Sequence[Segment]) -> dict[str, Any]:
    """The shares of right endings, if all tasks have golden answers."""
    if not all(task.golden_answers for task in tasks):
        return {}
    ours, theirs = (
        [float(ends_right(one.text, task.golden_answers)) for task, one in zip(tasks, side, strict=True)]
        for side in (own, others)
    )
    return {
        "right": share(ours).as_json(),
        "right_against": share(theirs).as_json(),
        "right_gain": paired_bootstrap(ours, theirs).as_json(),
    }


def win_rate(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """How often the first of each pair is better: `win_rate` with ties as halves, the counts of `wins`, `ties`,
    `losses`, and pairs without a verdict (`no_verdict`), which are no losses, and the p-value `p` of the sign test,
    which ignores ties."""
    known = [verdict.score for verdict in verdicts if verdict.score is not None]
    sides = Counter((score > 0.5) - (score < 0.5) for score in known)
    return {
        "win_rate": share(known).as_json(),
        "no_verdict": len(verdicts) - len(known),
        "wins": sides[1],
        "ties": sides[0],
        "losses": sides[-1],
        "p": mcnemar(sides[1], sides[-1]),
    }
