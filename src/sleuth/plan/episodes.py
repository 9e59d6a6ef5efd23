"""How long the sequences of a stage may be, and how long they typically are.

Limits are the recipe's. Typical lengths of searches and refinements are assumptions, the constants below; those of
stages on texts follow from the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sleuth.answers.suites import SUITES
from sleuth.cite.tables import RefineEnvRecipe
from sleuth.dialect import dialect_of
from sleuth.kernels.card_pass import PAGE
from sleuth.plan.memory import Passes
from sleuth.recipe import (
    EvaluateRecipe,
    GrpoRecipe,
    Recipe,
    SupervisedRecipe,
    TextRecipe,
)
from sleuth.recipe.data import AnsweredRowsRecipe, ThoughtPlaces
from sleuth.recipe.stage import EvaluationFields, SampledRecipe
from sleuth.search.tables import SearchEnvRecipe, WarmStartRecipe
from sleuth.think.preference_tables import OnlineDpoRecipe, WinRateRecipe
from sleuth.think.tables import (
    AnnotateRecipe,
    GateRecipe,
    ProbeRecipe,
    ReasonRecipe,
    ThoughtEnvRecipe,
    ThoughtTextRecipe,
)

PROMPT, TURN, PASSAGE, SEARCHES = 300, 120, 150, 2
"""Tokens of a search prompt, of a turn and of a passage, and searches of a typical episode, where limits allow them.
Search agents of 0.6B to 3B that were published wrote 1,100 to 2,050 tokens an episode, results included."""
FULL = 0.5
"""Share of the limit that a typical refiner's evidence, answer, or solution of a problem fills."""
PROBLEM = 512
"""Tokens of a problem of a reasoning benchmark, its examples included."""
ANSWER = 1_024
"""Longest answer of a refiner whose recipe does not limit it."""
TAGS = 8
"""Tokens of tags around a thought."""
ROW = 512
"""Tokens of a row where the recipe does not say."""
SETS = 7
"""Test sets of a suite in a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of one sequence: at most `limit`; typically a `prompt`, which siblings share, and a `response`, of which
    the policy samples `sampled`."""

    limit: int
    prompt: int
    response: int
    sampled: int

    @property
    def typical(self) -> int:
        """Tokens of a typical sequence."""
        return self.prompt + self.response


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The sequences that one step of a stage generates, or all of an evaluation: `samples` for each of `prompts`, at
    most `at_once` together, in a cache of `cache_memory` at most. `prompts` is None for a file of unknown length."""

    prompts: int | None
    samples: int
    at_once: int
    cache_memory: str | None
    lengths: Lengths

    @property
    def sequences(self) -> int | None:
        """All of them."""
        return None if self.prompts is None else self.prompts * self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNeed:
    """Bytes of the cache for what runs at once: all sequences at their limit, typical ones, and a single one at its
    limit, without which nothing runs."""

    at_limit: int
    typical: int
    least: int

    @classmethod
    def of(cls, played: Played, passes: Passes) -> CacheNeed:
        """The need of these sequences. Siblings share the full pages of their prompt."""
        lengths, page = played.lengths, passes.page()
        shared = lengths.prompt // PAGE
        own = passes.pages(lengths.typical) - shared
        least = passes.pages(lengths.limit)
        groups = -(-played.at_once // played.samples)
        return cls(
            at_limit=played.at_once * least * page,
            typical=(groups * shared + played.at_once * own) * page,
            least=least * page,
        )


def played_by(recipe: Recipe, index: int, ranks: int) -> Played | None:
    """What a rank generates in a step of a training stage, or in an evaluation; None if nothing."""
    stage = recipe.stage[index]
    match stage:
        case WarmStartRecipe():
            follower = recipe.grpo_stage_after(index)
            samples = stage.samples_per_prompt or follower.samples_per_prompt
            return _played(follower, -(-stage.prompts // ranks), samples, lengths_of(recipe, index))
        case GrpoRecipe() | OnlineDpoRecipe():
            prompts, samples = stage.played_per_step
            return _played(stage, -(-prompts // ranks), samples, lengths_of(recipe, index)) if samples else None
    if not isinstance(stage, EvaluationFields):
        return None
    asked = stage.asked
    if isinstance(stage, EvaluateRecipe) and stage.data.suite is not None:
        asked = _asked_of_suite(stage.data.suite, stage.data.per_set)
    return _played(
        stage, None if asked is None else asked * stage.arms, stage.samples_of_each, lengths_of(recipe, index)
    )


def _asked_of_suite(suite: Path, per_set: int | None) -> int | None:
    """The number of questions; None if it is not known without reading the sets."""
    if named := SUITES.get(str(suite)):
        return named.asked(per_set)
    return SETS * per_set if per_set is not None else None


def _played(limits: SampledRecipe, prompts: int | None, samples: int, lengths: Lengths) -> Played:
    at_once = limits.slots if prompts is None else min(limits.slots, prompts * samples)
    return Played(prompts=prompts, samples=samples, at_once=at_once, cache_memory=limits.cache_memory, lengths=lengths)


def lengths_of(recipe: Recipe, index: int) -> Lengths:
    """Lengths of the sequences that a stage generates or, in a supervised stage, trains on."""
    stage = recipe.stage[index]
    match stage:
        case AnnotateRecipe():
            return _text(stage.tokens, 0)
        case SupervisedRecipe():
            return _rows(recipe, index, stage)
        case WarmStartRecipe():
            follower = recipe.grpo_stage_after(index)
            assert isinstance(follower.env, SearchEnvRecipe)  # the recipe's checks allow no other
            return _search(follower.env, follower.context)
        case OnlineDpoRecipe() | WinRateRecipe():
            return _text(stage.data.prefix_tokens, stage.data.suffix_tokens)
        case ProbeRecipe() | GateRecipe():
            return _thought(stage.env, stage.data)
        case ReasonRecipe():
            written = round(FULL * stage.max_tokens)
            return Lengths(limit=PROBLEM + stage.max_tokens, prompt=PROBLEM, response=written, sampled=written)
        case GrpoRecipe(env=ThoughtEnvRecipe() as env):
            assert isinstance(stage.data, ThoughtPlaces)  # the recipe's checks allow no other
            return _thought(env, stage.data)
        case GrpoRecipe() | EvaluateRecipe():
            env, context = recipe.env_and_context(index)
            match env:
                case RefineEnvRecipe():
                    return _refined(env, context)
                case SearchEnvRecipe():
                    return _search(env, context)
                case _:
                    return _own(context)
        case _:
            raise AssertionError(f"no lengths of a {stage.kind} stage")


def _search(env: SearchEnvRecipe, context: int) -> Lengths:
    dialect = dialect_of(env.dialect)
    turn = min(env.turn_tokens or dialect.turn_tokens, TURN)
    found = (env.top_k or dialect.top_k) * (env.passage_tokens or dialect.passage_tokens or PASSAGE)
    results = min(found, env.results_tokens or dialect.results_tokens or found)
    turns, searches = env.turns or dialect.turns, env.searches if env.searches is not None else dialect.searches
    limits = [SEARCHES, *([] if turns is None else [turns - 1]), *([] if searches is None else [searches])]
    made = 0 if env.closed_book else min(limits)
    prompt = min(PROMPT, context // 2)
    response = min((made + 1) * turn + made * results, context - prompt)
    return Lengths(limit=context, prompt=prompt, response=response, sampled=min((made + 1) * turn, response))


def _own(context: int) -> Lengths:
    """Of an environment or tools of a user, about which nothing is known: as long as the context allows."""
    prompt = min(PROMPT, context // 2)
    return Lengths(limit=context, prompt=prompt, response=context - prompt, sampled=context - prompt)


def _refined(env: RefineEnvRecipe, context: int) -> Lengths:
    written = min(env.turn_tokens or ANSWER, context // 2)
    answer = round(FULL * written)
    return Lengths(limit=context, prompt=round(FULL * (context - written)), response=answer, sampled=answer)


def _thought(env: ThoughtEnvRecipe, data: ThoughtPlaces) -> Lengths:
    sampled = env.thought_tokens + env.suffix_tokens
    read = sampled + TAGS + (0 if env.suffix_tokens else data.suffix_tokens)  # the true suffix is scored, not written
    return Lengths(limit=data.prefix_tokens + read, prompt=data.prefix_tokens, response=read, sampled=sampled)


def _text(prefix: int, suffix: int) -> Lengths:
    return Lengths(limit=prefix + suffix, prompt=prefix, response=suffix, sampled=suffix)


def _rows(recipe: Recipe, index: int, stage: SupervisedRecipe) -> Lengths:
    match stage.data:
        case TextRecipe():
            return _text(0, stage.data.prefix_tokens + stage.data.suffix_tokens)
        case ThoughtTextRecipe():
            return _text(0, stage.data.row_tokens)
        case AnsweredRowsRecipe():
            env, context = recipe.refine_env_and_context(index)
            assert isinstance(env, RefineEnvRecipe)
            return _refined(env, context or ROW)
        case _:
            return _text(0, ROW)
