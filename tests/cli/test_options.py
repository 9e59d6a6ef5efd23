"""In every mode of a verb an option either has a part or is told to have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from verb import sleuth

from sleuth.cli.app import app
from sleuth.cli.modes import Mode
from sleuth.types import SleuthError

ASKED = "index retriever refiner dialect prompt prompt-role context samples forced-search scorer engine served-as"
WRITTEN = "slots dtype"
SERVED = "port host name slots waiting max-seconds context dtype"
MODES = {
    ("eval", "--questions", "no.jsonl"): f"{ASKED} {WRITTEN} ask-with limit rows out json",
    (
        "eval",
        "--questions",
        "no.jsonl",
        "--rows",
        "new.jsonl",
    ): f"{ASKED} {WRITTEN} ask-with limit min-citation-f1 out json",
    ("eval", "--suite", "no"): f"{ASKED} {WRITTEN} ask-with per-set out json",
    ("eval", "--win-rate", "no.toml"): "against out json",
    ("eval", "--reasoning", "no.toml"): "out json",
    ("probe", "--questions", "no.jsonl"): "index limit dialect prompt out json",
    ("probe", "--thoughts", "no.toml"): "limit out json",
    ("serve", "--dialect", "sleuth"): f"{SERVED} index url prompt prompt-role forced-search",
    ("serve", "--emulate", "vllm"): f"{SERVED} fault logprobs",
}
"""By what is asked for: the options that have a part in it."""
BOTH = {"--questions", "--suite"}
"""Which of them is one too many, nobody knows; tests/cli/test_eval_suite.py."""
VALUES = {
    "ask-with": "question",
    "prompt-role": "raw",
    "dtype": "float32",
    "logprobs": "raw",
    "emulate": "vllm",
    "min-citation-f1": "0.5",
}


def cases() -> Iterator[Any]:
    """Every option beside every mode, flags also as their contrary."""
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for mode, used in MODES.items():
        verb, *asked = mode
        options = [one for one in verbs[verb].params if one.param_type_name == "option" and one.opts[0] not in asked]
        for option in options:
            name = option.opts[0].removeprefix("--")
            if name == "help" or {option.opts[0], asked[0]} == BOTH:
                continue
            value = [] if option.is_flag else [VALUES.get(name, "3")]
            for spelled in (option.opts[0], *option.secondary_opts):
                yield pytest.param(mode, [spelled, *value], name in used.split(), id=" ".join((*mode, spelled)))


@pytest.mark.parametrize(("mode", "given", "has_part"), list(cases()))
def test_an_option_has_a_part_or_is_refused_by_its_name(
    mode: tuple[str, ...], given: list[str], has_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    require = Mode.require

    def watched(self: Mode, typed: typer.Context) -> None:
        try:
            require(self, typed)
        except SleuthError as error:
            refused.append(f"error: {error}\n")
            raise

    monkeypatch.setattr(Mode, "require", watched)
    verb, *asked = mode
    done = sleuth(verb, "no-such/model/here", *asked, *given)
    assert done.exit_code == 2, done.output  # there are no such files, and no such model
    assert done.stderr.count("\n") == 1
    assert refused == ([] if has_part else [done.stderr])
    if not has_part:
        assert done.stderr.split()[1] in (given[0], *asked)  # what asks for another mode may stay, and its rival go


def test_what_an_option_would_be_right_for_is_told_with_its_value() -> None:
    def told(*arguments: object) -> str:
        return sleuth(*arguments).stderr

    recipe = "which asks problems as the reason stage of its recipe says; leave it out\n"
    assert told("eval", "m", "--reasoning", "r.toml", "--samples", 5) == (
        f"error: --samples has no part in --reasoning, {recipe}"
    )
    assert told("eval", "m", "--reasoning", "r.toml", "--no-forced-search") == (
        f"error: --no-forced-search has no part in --reasoning, {recipe}"
    )
    assert told("eval", "m", "--win-rate", "r.toml", "--limit", 3) == (
        "error: --limit has no part in --win-rate, which continues texts as the win_rate stage of its recipe says; "
        "leave it out\n"
    )
    assert told("eval", "m", "--questions", "q.jsonl", "--min-citation-f1", 0.5) == (
        "error: --min-citation-f1 0.5 is for --rows FILE.jsonl, where what is accepted is kept; give that too\n"
    )
    assert told("eval", "m", "--suite", "s", "--rows", "r.jsonl") == (
        "error: --rows is for --questions: a suite is there to be measured with, not to be learned from\n"
    )
    assert told("serve", "m", "--emulate", "vllm", "--no-forced-search") == (
        "error: --no-forced-search is for an agent; --emulate serves the bare model, without an environment\n"
    )
    assert told("serve", "m", "--logprobs", "raw") == "error: --logprobs is for --emulate vllm or --emulate sglang\n"
    assert told("probe", "m", "--thoughts", "r.toml", "--prompt", "plain") == (
        "error: --prompt is for looking things up, and --thoughts for thoughts; leave one of them out\n"
    )


def test_what_is_typed_as_the_default_is_typed_too() -> None:
    assert sleuth("eval", "m", "--reasoning", "r.toml", "--samples", 1).exit_code == 2
    assert "--samples" in sleuth("eval", "m", "--reasoning", "r.toml", "--samples", 1).stderr
