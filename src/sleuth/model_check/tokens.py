"""Stop tokens, and how the tags of Sleuth's dialects are encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.dialects import DIALECTS
from sleuth.dialects.refine import ANSWER_ONLY
from sleuth.dialects.tools import TOOLS_TEXT
from sleuth.model_check.conversation import Step
from sleuth.model_check.finding import Finding, listed, shown
from sleuth.model_check.model_files import ModelFiles
from sleuth.render import check_writable, encode
from sleuth.types import SleuthError

SHOWN_TAGS = 4


def end_findings(files: ModelFiles, steps: Sequence[Step]) -> Iterator[Finding]:
    """Whether sampling stops where the template ends a message."""
    check = "stop tokens"
    stops = sorted(map(files.token, files.eos_ids))
    known = listed(stops) if stops else "none"
    ends = list(dict.fromkeys(step.end for step in steps))
    bad = False
    for end in ends:
        tokens = encode(files.tokenizer, end)
        if not end:
            line = "the template ends a turn with no control token, so that a policy cannot end its turn there"
            fix = 'use prompt_role = "raw" and a dialect of plain text, whose tags end turns'
        elif len(tokens) != 1:
            line = f"the template ends a turn with {end}, which the tokenizer splits into {len(tokens)} tokens"
            fix = "add it to the tokenizer as a special token, and train its embedding"
        elif tokens[0] not in files.eos_ids:
            line = f"the template ends a turn with {end}, and sampling stops at {known}: turns run on to their limit"
            fix = f"add {tokens[0]} to eos_token_id in generation_config.json, or pass it as a stop token"
        else:
            continue
        bad = True
        yield Finding(check=check, level="problem" if end else "warning", line=line, fix=fix)
    own = str(files.tokenizer.eos_token)
    if not bad and own not in ends:
        bad = True
        yield Finding(
            check=check,
            level="warning",
            line=f"the template ends a turn with {listed(ends)}, but the tokenizer's eos_token is {own}: what appends "
            "eos_token ends a turn otherwise than the template",
            fix=f"set eos_token to {ends[-1]} for training",
        )
    if not bad:
        yield Finding(check=check, level="ok", line=f"the template ends a turn with {listed(ends)}; stops: {known}")
    yield from _closing_findings(files, steps)


def _closing_findings(files: ModelFiles, steps: Sequence[Step]) -> Iterator[Finding]:
    """Where a turn ends otherwise as the last message than in the history."""
    for step in steps:
        _, found, rest = step.after.rpartition(step.turn.content) if step.turn.content else ("", "", "")
        rest = rest.lstrip()
        if found and step.end and not rest.startswith(step.end):
            now = next((name for name in files.controls if rest.startswith(name)), "")
            yield Finding(
                check="stop tokens",
                level="warning",
                line=f"a turn ends with {step.end} as the last message, and with {now or shown(rest[:20])} once "
                "another follows: a policy that learns the one reads the other",
                fix="keep the end that was sampled in the history, as Sleuth does",
            )
            return


def tag_findings(tokenizer: PreTrainedTokenizerFast) -> Iterator[Finding]:
    """Whether the tokenizer can write each tag of our dialects, and as how many tokens."""
    dialects = (*DIALECTS.values(), TOOLS_TEXT, ANSWER_ONLY)
    tags = list(dict.fromkeys(tag for dialect in dialects for tag in dialect.tags))
    if unwritable := [tag for tag in tags if not _writable(tokenizer, tag)]:
        yield Finding(
            check="tags",
            level="problem",
            line=f"the tokenizer cannot write {listed(unwritable)}",
            fix="use a tokenizer with bytes as a fallback",
        )
    elif several := [tag for tag in tags if len(encode(tokenizer, tag)) > 1]:
        some = ", ".join([*several[:SHOWN_TAGS], *["..."][: len(several) - SHOWN_TAGS]])
        line = f"of {len(tags)} tags of Sleuth's dialects {len(several)} are several tokens ({some})"
        yield Finding(check="tags", level="ok", line=line)
    else:
        yield Finding(check="tags", level="ok", line=f"all {len(tags)} tags of Sleuth's dialects are one token each")


def _writable(tokenizer: PreTrainedTokenizerFast, tag: str) -> bool:
    try:
        check_writable(tokenizer, [tag])
    except SleuthError:
        return False
    return True
