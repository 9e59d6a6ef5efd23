"""A user's own code in episodes: environments that a class computes, and the record of all such code in checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from transformers import PreTrainedTokenizerFast

from sleuth import family
from sleuth.dialect import Dialect, dialect_of
from sleuth.episodes.frames import ChatFrame, Frame, TextFrame
from sleuth.episodes.mcp_server import tool_server, tools_sha256
from sleuth.episodes.own_object import SCORES, OwnObject, require_makes
from sleuth.episodes.protocol import AGENT, OwnCode, ProtocolCard, RewardSpec
from sleuth.episodes.setting import Setting, template_of
from sleuth.episodes.step_env import StepEnv
from sleuth.episodes.tables import FunctionEnvRecipe
from sleuth.host.escapes import replace_surrogates
from sleuth.own.calls import THREADS, Caller, shown_value
from sleuth.own.commands import load_command
from sleuth.own.functions import UserCodeError, load_function, merged_sources, resolved, sources_of
from sleuth.recipe.draft import read_toml
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.grpo import GrpoRecipe
from sleuth.recipe.problems import tables_in
from sleuth.recipe.schedule import scheduled
from sleuth.render import load_tokenizer
from sleuth.types import Action, Env, EpisodeKey, Piece, Reply, Score, SleuthError, StopReason, Task

ENDS = (None, "answered", "turns", "length", "failed")
"""What `Reply.done` may be."""


class FunctionEnv:
    """An environment of the user, which a class or function makes, for one episode: one with `open` and `reply`, or one
    with `reset` and `step`, whose observations the `frame` formats.

    If it raises, takes too long or returns no valid reply, the episode ends with the stop reason `failed`, so that its
    score is missing; the `failure` of the last action is the reason, with the user's file and line. Its methods may be
    asynchronous or not.
    """

    def __init__(self, own: OwnObject, frame: Frame, dialect: Dialect) -> None:
        self.own = own
        self.frame = frame
        self.dialect = dialect
        self.steps: StepEnv | None = None

    async def open(self) -> Reply:
        """The user's first reply, or the first observation."""
        own, error = self.own, self.own.make.function.error
        try:
            await own.create()
            own.made, *writers = own.made if isinstance(own.made, tuple) and own.made else (own.made,)
            if len(writers) not in (0, 2) or not all(map(callable, writers)):
                raise error("made a tuple; expected an environment, or (environment, to_action, to_text)")
            if own.has("open", "reply"):
                if isinstance(self.frame, ChatFrame):
                    raise error("has the methods open and reply, which write the prompt: prompt_role has no effect")
                return self._checked(await own.make.run(own.made.open), "open")
            if not own.has("reset", "step"):
                raise error(
                    f"made {shown_value(own.made)}, which has not the methods open and reply, nor reset and step"
                )
            self.steps = StepEnv(own, self.frame, self.dialect, *writers)
            return await self.steps.open()
        except UserCodeError as failure:
            return failed(failure)

    async def reply(self, text: str, stop: StopReason) -> Reply:
        """The user's reply to a turn, or the next observation."""
        try:
            if self.steps is not None:
                return await self.steps.reply(text, stop)
            return self._checked(await self.own.make.run(self.own.made.reply, text, stop), "reply")
        except UserCodeError as error:
            return failed(error)

    async def score(self) -> Score | None:
        """The score that it gives itself, or the sum of the rewards of its steps."""
        if self.steps is None or any(map(self.own.has, SCORES)):
            return await self.own.score()
        return self.steps.score()

    async def close(self) -> None:
        """Lets the user's environment close what it opened, if it has a method for that."""
        await self.own.close()

    def _checked(self, reply: Any, method: str) -> Reply:
        error = self.own.make.function.error
        if not isinstance(reply, Reply):
            raise error(f"{method} returned {repr(reply)[:60]}; expected a sleuth.types.Reply")
        if not isinstance(reply.pieces, tuple) or not all(isinstance(piece, Piece) for piece in reply.pieces):
            raise error(f"{method} returned pieces = {repr(reply.pieces)[:60]}; expected a tuple of sleuth.types.Piece")
        texts = (*(piece.text for piece in reply.pieces), *reply.stops)
        if odd := next((text for text in texts if not isinstance(text, str)), None):
            raise error(f"{method} returned {repr(odd)[:60]} as the text of a piece or a stop; expected a str")
        if any(piece.author == "policy" for piece in reply.pieces):
            raise error(f'{method} returned a piece with author = "policy": only the policy writes those')
        if reply.done not in ENDS:
            raise error(f"{method} returned done = {reply.done!r}: expected None, {', '.join(map(repr, ENDS[1:]))}")
        if not isinstance(reply.max_tokens, int) or (reply.done is None and reply.max_tokens < 1):
            raise error(f"{method} returned a reply that allows the policy no token: set max_tokens, or done")
        actions = (*reply.earlier, reply.action) if reply.action is not None else reply.earlier
        if not all(isinstance(action, Action) for action in actions):
            raise error(f"{method} returned an action that is not a sleuth.types.Action")
        texts = (*texts, *(action.text for action in actions), *(action.result for action in actions))
        if odd := next((text for text in texts if replace_surrogates(text) != text), None):
            raise error(f"{method} returned {ascii(odd)[:60]}, which no file can hold: it has an unpaired surrogate")
        if method == "open" and not reply.pieces and reply.done is None:
            raise error("open returned no pieces, so that the policy would have no prompt")
        return reply


def failed(error: UserCodeError) -> Reply:
    """The end of an episode whose score is missing because of the user's code."""
    return Reply(action=Action(kind="invalid", text="", failure=str(error)), done="failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSetting(Setting):
    """What the episodes in an environment of the user share. Of its dialect only the tags that rewards read are used:
    the environment has its own prompt."""

    parameters: Mapping[str, Any]
    make: Caller

    longest_answer_is: ClassVar[str] = "an answer of at least "
    longest_answer_key: ClassVar[str] = "what the environment's `open` writes"

    def env(self, task: Task, key: EpisodeKey = (0, 0)) -> Env:
        return FunctionEnv(OwnObject(task, self.make, self.parameters), self.frame(), self.dialect)

    def frame(self) -> Frame:
        """Of an environment with `reset` and `step`: messages, or plain text."""
        if self.template is None:
            return TextFrame(self.dialect)
        return ChatFrame(replace(self.dialect, frame="conversation"), self.prompt_role, self.template)

    @property
    def longest_answer(self) -> int:
        """Any token: each reply has its own limit."""
        return 1

    @property
    def opening(self) -> str:
        """Unknown without a task."""
        return ""


def function_setting(env: FunctionEnvRecipe, tokenizer: PreTrainedTokenizerFast | None) -> FunctionSetting:
    """The user's class or function. Raises UserCodeError if there is none, or if it cannot be called with a task, or
    without, and the parameters."""
    function = load_function(env.function, env.files)
    require_makes(function, env.parameters)
    dialect = replace(dialect_of(env.dialect), turn_tokens=env.turn_tokens)
    return FunctionSetting(
        dialect=dialect,
        prompt_role=env.prompt_role,
        template=template_of(env, dialect, tokenizer) if env.prompt_role == "user" else None,
        own_code=env_code_in(env),
        parameters=env.parameters,
        make=Caller(function, seconds=env.seconds, delays_engine=True, at_once=THREADS),
    )


def trained_setting(card: ProtocolCard, model: str, index: Path | None = None) -> Setting:
    """The environment, the agent or the tools of the user that trained a checkpoint, with the `index` that the tools
    search. Modules are where the recipe has them, or in the current folder. Raises SleuthError if one may not be
    imported, is not there or has changed, or if the index is missing."""
    env = card.env
    assert env is not None
    kind = "agent" if card.prompt == AGENT else "tools" if card.prompt_text else "python"
    trained = f"{model}: was trained in {' and '.join(card.own_environment)}"
    if kind == "tools" and card.corpus_sha256 is not None and index is None:
        raise SleuthError(f"{trained} and the tool search: name its index by --index DIR")
    try:
        places = [_trained_place(Path(model), name) for name in card.own_environment]
        known = merged_sources(*(load_function(place).sources for place in places))
        table: dict[str, Any] = {"kind": kind, "files": tuple(Path(file) for file in env.sources if file not in known)}
        table |= {"turn_tokens": card.dialect.turn_tokens, "template_flags": card.template_flags}
        if kind == "tools":
            stand_in = "research_rules" if card.prompt_role == "system" else "plain"  # the card has its text
            table |= {"tools": places, "index": index, "prompt": stand_in, "prompt_role": card.prompt_role}
        else:
            table |= {"function": places[0], "parameters": env.parameters, "dialect": card.dialect.name}
        if kind == "python":
            table["prompt_role"] = "raw" if card.prompt_role == "raw" else "user"
        setting: Setting = family.table("environments", kind).model_validate(table).setting(load_tokenizer(model), [])
    except SleuthError as error:
        raise SleuthError(f"{trained}: {error}") from None
    if changed := code_differences({"env": env}, {"env": setting.own_code or env}):
        raise SleuthError(
            f"{trained}, and {', '.join(changed)} changed since; put back what was there, or evaluate it in a recipe "
            "with an `evaluate` stage whose env names it"
        )
    prompt = {"prompt": card.prompt_text, "prompt_name": card.prompt, "ask_with": card.ask_with}
    return replace(setting, dialect=card.dialect, **prompt if kind == "tools" else {})


def _trained_place(model: Path, name: str) -> str:
    """`folder/my_env.py:Guessing` for `my_env:Guessing`."""
    recipe = model.resolve().parent.parent / "recipe.toml"
    stages = read_toml(recipe).get("stage", []) if recipe.is_file() else []
    envs = [env for stage in stages if isinstance(stage, dict) and isinstance(env := stage.get("env"), dict)]
    tools = [tool for env in envs for tool in env.get("tools", ())]
    named = [str(one.get("function", "") if isinstance(one, dict) else one) for one in (*envs, *tools)]
    module, _, attribute = name.partition(":")
    end = f"/{module.replace('.', '/')}.py:{attribute}"
    there = (one for one in named if f"/{one}".endswith(end) and Path(one.partition(":")[0]).is_file())
    return next(there, resolved(name, [Path()]))


# -- its record --------------------------------------------------------------------------------------------------------


def own_code_of(names: Sequence[str], parameters: Mapping[str, Any], files: Sequence[Path]) -> OwnCode:
    """The record of functions, `MODULE:NAME`, which read `files`. Raises UserCodeError if one does not exist."""
    functions = [load_function(name, files) for name in names]
    sources = merged_sources(*(function.sources for function in functions))
    return OwnCode(
        functions=tuple(function.name for function in functions), parameters=dict(parameters), sources=sources
    )


def env_code_in(env: EnvFields) -> OwnCode | None:
    """The record of the functions that an environment calls, or of the command; None for our environments."""
    if (command := getattr(env, "command", None)) is not None:
        loaded = load_command(command, getattr(env, "files", ()))
        return OwnCode(functions=(command,), parameters={}, sources=dict(loaded.sources))
    if not env.functions() and not env.tool_servers():
        return None
    code = own_code_of(env.functions(), getattr(env, "parameters", {}), getattr(env, "files", ()))
    servers: dict[str, str] = {}
    for server in env.tool_servers():
        address = server.mcp or ""
        name = f"{address} in {server.folder}" if server.folder is not None else address
        servers[name] = tools_sha256(tool_server(address, server.folder).offered(server.only))
    return OwnCode(
        functions=(*code.functions, *servers),
        parameters=code.parameters,
        sources=code.sources | {f"tools of {name}": sha256 for name, sha256 in servers.items()},
    )


def families_code_in(stage: GrpoRecipe) -> OwnCode | None:
    """The record of the classes of a stage's tables that families of others bring; None if there are none."""
    kinds = dict.fromkeys(type(table) for _, table in tables_in(stage))
    others = [kind for kind in kinds if kind.__module__.partition(".")[0] != "sleuth"]
    if not others:
        return None
    names = tuple(f"{kind.__module__}:{kind.__name__}" for kind in others)
    return OwnCode(functions=names, parameters={}, sources=merged_sources(*map(sources_of, others)))


def own_code_in(stage: GrpoRecipe) -> dict[str, OwnCode]:
    """The records of a stage's environment (`env`), loss (`loss`), `advantage`, `data`, `schedules`, `hooks` and tables
    (`families`), as far as they are not ours. The functions of its rewards are in its reward specification."""
    loss, data = stage.loss, cast("Any", stage.data)
    schedules = [value for value in scheduled(stage).values() if isinstance(value, str)]
    found = {
        "env": env_code_in(stage.env),
        "loss": own_code_of([loss.function], loss.parameters, loss.files) if loss.function is not None else None,
        "advantage": own_code_of([loss.own_advantage], {}, loss.files) if loss.own_advantage is not None else None,
        "data": own_code_of([data.function], data.parameters, data.files) if hasattr(data, "function") else None,
        "schedules": own_code_of(schedules, {}, ()) if schedules else None,
        "families": families_code_in(stage),
        "hooks": own_code_of(stage.hooks, {}, ()) if stage.hooks else None,
    }
    return {what: code for what, code in found.items() if code is not None}


def all_sources(code: Mapping[str, OwnCode]) -> dict[str, str]:
    """The sha256 of all their files, by path. Raises UserCodeError if two different files have the same path."""
    return merged_sources(*(one.sources for one in code.values()))


def code_differences(before: Mapping[str, OwnCode], now: Mapping[str, OwnCode]) -> list[str]:
    """What differs between records of a stage's code: files, and `the functions of env` or `the parameters of loss`."""
    old, new = all_sources(before), all_sources(now)
    found = [name for name in old | new if old.get(name) != new.get(name)]
    for what in {**before, **now}:
        one, other = before.get(what), now.get(what)
        for part in ("functions", "parameters"):
            if getattr(one, part, None) != getattr(other, part, None):
                found.append(f"the {part} of {what}")
    return found


def accepted_hash(reward: RewardSpec, code: Mapping[str, OwnCode]) -> str:
    """What `--accept-reward` names: the hash of the reward, or, of a stage with other code of the user, of both."""
    if not code:
        return reward.hash
    plain = {what: one.model_dump(mode="json") for what, one in code.items()} | {"reward": reward.hash}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
