"""A warm start for a policy that never searches: what it does right under a hint, trained without the hint (STaR,
arXiv:2203.14465)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from sleuth.answers.factory import answer_scorer_of, require_answers, reward_spec_of
from sleuth.data.questions import questions_hash, select_tasks
from sleuth.dialect import Dialect
from sleuth.engines.remote.pool import PoolEngine
from sleuth.episodes.calls import call_of, calls_in, queries_of
from sleuth.episodes.fitting import fitting_tasks
from sleuth.episodes.setting import Setting
from sleuth.evaluation.eval_session import EvalSession
from sleuth.learn.batch import Row, collate
from sleuth.recipe import GrpoRecipe, QuestionsRecipe
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.schedule import Schedules, with_numbers
from sleuth.render import Renderer
from sleuth.search.tables import HintRecipe, SearchEnvRecipe, WarmStartRecipe
from sleuth.training.engines import evaluation_pool
from sleuth.training.learning import adapt, load, model_to_train
from sleuth.training.loop import Figures, InfiniteSampler, train
from sleuth.training.sft import SFTTrainer
from sleuth.training.stage_context import Saved, StageContext, StageInputs, finished, keep_fitting, last_saved
from sleuth.types import Episode, Piece, RunFailed, Score, Segment, Task

LEAST = 8
"""Different right episodes that are needed to train on."""
OWN, HINTED = 0, 1
"""The two arms in the keys of random draws."""
ARMS = ("as it is", "to be trained")

Marked = list[tuple[Segment, bool]]
"""Segments, and which of them are trained."""


def run(stage: WarmStartRecipe, context: StageContext) -> Path:
    """Train on the right episodes; the last checkpoint. If the policy searches already, its model is returned."""
    saved = last_saved(context)
    if (last := finished(context, saved)) is not None:
        return last
    lesson = Lesson(stage, context)
    rows = lesson.rows()
    return train(stage, context, WarmStartTrainer(lesson, rows, saved), saved) if rows else Path(context.model)


def require_inputs(stage: WarmStartRecipe, inputs: StageInputs) -> list[Task]:
    """No tasks of its own: it plays those of the GRPO stage after it, with a hint. Raises SleuthError if that does not
    fit."""
    warmed = inputs.recipe.grpo_stage_after(inputs.index)
    tasks = _questions_of(warmed)
    inputs.setting(warmed.data, hinted_env(warmed.env, stage.hint), tasks, warmed.context)
    require_answers((), tasks)
    inputs.require_cache(warmed, warmed.context)
    return []


def _questions_of(stage: GrpoRecipe) -> list[Task]:
    assert isinstance(stage.data, QuestionsRecipe)  # the recipe's checks allow no other where episodes search
    return select_tasks(stage.data)


class WarmStartTrainer(SFTTrainer):
    """Trains on the rows of a lesson, shuffled in each epoch."""

    def __init__(self, lesson: Lesson, rows: Sequence[Row], saved: Saved | None) -> None:
        if saved:
            model, tokenizer = model_to_train(lesson.context, saved)
        else:
            model, tokenizer = lesson.model, lesson.tokenizer
            adapt(lesson.context, model)
        super().__init__(lesson.stage, lesson.context, saved, model, tokenizer)
        self.protocol = lesson.protocol
        self.summary = lesson.summary
        self.order = InfiniteSampler(rows, seed=lesson.context.key)
        self.rows_per_step = lesson.stage.rows_per_step

    def opening(self) -> list[str]:
        """How many episodes were played, and how many of them are trained."""
        return [self.summary]

    def step(self, step: int) -> Figures:
        """One optimiser step on the next rows."""
        started = time.monotonic()
        self.order.taken = (step - 1) * self.rows_per_step
        return self.learn(collate(self.order.take(self.rows_per_step)), started)


class Lesson:
    """The episodes of one warm start, a function of the model that it starts from: a run that goes on plays them again.
    `protocol` is that of the trained rows; `summary` has the number of episodes, once `rows` has played them."""

    def __init__(self, stage: WarmStartRecipe, context: StageContext) -> None:
        self.stage = stage
        self.context = context
        self.played_as = context.recipe.grpo_stage_after(context.index)
        self.model, self.tokenizer = load(context, context.model)
        env, reward, data = self.played_as.env, self.played_as.reward, self.played_as.data
        read, longest = _questions_of(self.played_as), self.played_as.context
        self.real, self.hinted = (one.setting(self.tokenizer, read) for one in (env, hinted_env(env, stage.hint)))
        questions, _ = fitting_tasks(data, self.real, self.tokenizer, read, longest)
        fitting = keep_fitting(context, data, self.hinted, self.tokenizer, questions, longest)
        self.tasks = InfiniteSampler(fitting, seed=context.key).take(stage.prompts)
        self.protocol = self.real.protocol(
            answer_scorer_of(reward), longest, reward=reward_spec_of(reward), questions_sha256=questions_hash(questions)
        )
        self.summary = ""

    def rows(self) -> list[Row]:
        """The right episodes under the hint, without the hint; none if the policy searches by itself. Each rank plays a
        share of them."""
        name, below = self.stage.name, self.stage.below
        pool = evaluation_pool(self.context, self.model, self.tokenizer, self.played_as.context)
        own = self._play(pool, self.real, OWN, samples=1)
        searched = fmean(float(episode.trajectory.searches > 0) for episode, _ in own)
        self.summary = f"{searched:.0%} of {len(self.tasks)} episodes search"
        if searched >= below:
            self.context.folder.say(f"{self.summary}, and below = {below}: {name} is skipped")
            return []
        samples = self.stage.samples_per_prompt or self.played_as.samples_per_prompt
        played = self._play(pool, self.hinted, HINTED, samples)
        is_kept, in_words = KEPT[self.stage.taught]
        kept = [episode for episode, score in played if is_kept(episode, score)]
        renderer, context = Renderer(self.tokenizer, self.real.dialect.tags), self.played_as.context
        unhinted = partial(without_hints, real=self.real, hinted=self.hinted, renderer=renderer, context=context)
        rows: dict[tuple[int, ...], Row] = {}  # of equal ones the first
        for row in self.context.ranks.dealt(kept, lambda mine, _: asyncio.run(unhinted(mine))):
            rows.setdefault(row.tokens, row)
        found = f"of {len(played)} episodes under the hint {len(kept)} {in_words}"
        if len(rows) < LEAST:
            raise RunFailed(
                f"stage {name}: {found}, which makes {len(rows)} different ones in the real protocol, and a warm start "
                f"needs {LEAST}: take more prompts, easier questions or another hint"
            )
        self.summary += f"; {found}: {len(rows)} different ones are trained"
        return [*rows.values()]

    def _play(self, pool: PoolEngine | None, setting: Setting, arm: int, samples: int) -> list[tuple[Episode, Score]]:
        """Episodes of the policy, with their strict scores."""
        stage = self.played_as
        seed, *of_stage = self.context.key
        session = EvalSession(
            model=self.model,
            tokenizer=self.tokenizer,
            setting=setting,
            context=stage.context,
            slots=stage.slots,
            cache_memory=stage.cache_memory,
            temperature=with_numbers(stage, Schedules(stage).numbers(0, {})).sampling.temperature,
            samples=samples,
            seed=seed,
            draw=(*of_stage, arm),
            pool=pool,
            ranks=self.context.ranks,
        )
        return session.ask(self.tasks, f"{self.stage.name}, {ARMS[arm]}")


async def without_hints(
    episodes: Sequence[Episode], real: Setting, hinted: Setting, renderer: Renderer, *, context: int
) -> list[Row]:
    """Each episode without the hint, if that is at most `context` tokens.

    In the same dialect the prompt is replaced, and everything after it stays, token by token. In another one every turn
    is translated and given to the real environment, whose replies then stand between the turns.
    """
    rows: list[Row] = []
    for episode in episodes:
        if real.dialect == hinted.dialect:
            marked = await _with_real_prompt(episode, real, hinted, renderer)
        else:
            marked = await _replayed(episode, real, hinted, renderer)
        tokens = tuple(token for segment, _ in marked for token in segment.tokens)
        if marked and len(tokens) <= context:
            trained = tuple(is_trained for segment, is_trained in marked for _ in segment.tokens)
            rows.append(Row(tokens=tokens, trained=trained))
    return rows


async def _with_real_prompt(episode: Episode, real: Setting, hinted: Setting, renderer: Renderer) -> Marked:
    """What the policy wrote is trained, and so is a search tag that was opened for it."""
    openings = [await setting.env(episode.task).open() for setting in (real, hinted)]
    before, hint = (renderer.render_all(opening.pieces) for opening in openings)
    opened = hint[-1:] if hinted.forced_search else []
    rest = episode.trajectory.segments[len(hint) :]
    return [
        *((segment, False) for segment in before),
        *((segment, True) for segment in opened),
        *((segment, segment.author == "policy") for segment in rest),
    ]


async def _replayed(episode: Episode, real: Setting, hinted: Setting, renderer: Renderer) -> Marked:
    """The turns in the real dialect, and the replies of its environment; empty if one cannot be translated, or the
    environment ends otherwise than with the answer."""
    env = real.env(episode.task)
    reply = await env.open()
    marked = [(segment, False) for segment in renderer.render_all(reply.pieces)]
    for turn in _turns(episode, hinted):
        text = translated(turn, hinted.dialect, real.dialect)
        if text is None or reply.done is not None:
            return []
        stopped = text.endswith(real.dialect.stops)
        end = "" if stopped else str(renderer.tokenizer.eos_token)
        marked.append((renderer.render(Piece(text=text + end, author="teacher")), True))
        reply = await env.reply(text, "stop" if stopped else "eos")
        if reply.restarts:
            return []
        marked += [(segment, False) for segment in renderer.render_all(reply.pieces)]
    return marked if reply.done == "answered" else []


def _turns(episode: Episode, hinted: Setting) -> Iterator[str]:
    """What the policy wrote, turn by turn, with the tag that was opened for the first."""
    opened = hinted.dialect.search.open if hinted.forced_search else ""
    for segment in episode.trajectory.segments:
        if segment.author == "policy":
            yield opened + segment.text
            opened = ""


def hinted_env(env: EnvFields, hint: HintRecipe) -> EnvFields:
    """The environment with the hint in it."""
    assert isinstance(env, SearchEnvRecipe)  # the recipe's checks allow no other env here
    role = hint.prompt_role or env.prompt_role
    names = {"dialect": hint.dialect or env.dialect, "prompt": hint.prompt or env.prompt, "prompt_role": role}
    flags = {} if role == "raw" else env.template_flags
    return env.model_copy(update=names | {"template_flags": flags, "forced_search": hint.forced_search})


def is_right(episode: Episode, score: Score) -> bool:
    """It searched and then gave a golden answer."""
    return is_answered(episode, score) and score.parts.get("em") == 1 and episode.trajectory.searches > 0


def is_answered(episode: Episode, score: Score) -> bool:
    """It ended with an answer, in one trajectory: rewritten chats have no single text to train on."""
    return episode.trajectory.stop == "answered" and len(episode.trajectories) == 1


KEPT = {"right": (is_right, "searched and were right"), "answered": (is_answered, "ended with an answer")}


def translated(turn: str, source: Dialect, into: Dialect) -> str | None:
    """A turn of `source` written in `into`: its thoughts, then its search or answer, with the same white space.

    None if it has no action, a call that cannot be parsed, several calls, or several queries where `into` allows one.
    """
    match = source.find_action(turn)
    if match is None:
        return None
    answers = match["kind"] == "answer"
    if not answers and len(calls_in(turn, match, source)) > 1:
        return None
    opened = turn.rindex((source.answer if answers else source.search).open, 0, match.start("text"))
    thoughts = turn[:opened].replace(source.think.open, into.think.open).replace(source.think.close, into.think.close)
    action = (_answer if answers else _search)(match["text"], source, into)
    return None if action is None else thoughts + action


def _answer(text: str, source: Dialect, into: Dialect) -> str | None:
    if source.answer_inner is not None:
        inner = source.find_answer(text)
        if inner is None:
            return None
        text = inner["text"]
    return into.answer.around(into.answer_form.format(text=text))


def _search(text: str, source: Dialect, into: Dialect) -> str | None:
    queries = queries_of(text, source.tool)
    several = into.tool is not None and into.tool.several
    if not queries or (len(queries) > 1 and not several):
        return None
    return into.search.around(call_of(queries, into.tool))
