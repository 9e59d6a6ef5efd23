"""Stop tokens, and how the tags of Sleuth's dialects are encoded."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from sleuth.cite.dialect import ANSWER_ONLY
from sleuth.dialect import DIALECTS
from sleuth.plan.model_files import ModelFiles
from sleuth.plan.model_finding import Finding, listed
from sleuth.render import check_writable, encode
from sleuth.search.dialects.tools import TOOLS_TEXT
from sleuth.types import SleuthError

SHOWN_TAGS = 4


def end_finding(files: ModelFiles, end: str) -> Finding:
    """Whether sampling stops at `end`, the control token with which the template ends a message; empty if none does."""
    stops = sorted(map(files.token, files.eos_ids))
    known = listed(stops) if stops else "none"
    tokens, level, own = encode(files.tokenizer, end), "problem", str(files.tokenizer.eos_token)
    if not end:
        level, line = "warning", "the template ends a turn with no control token: a policy cannot end its turn there"
        fix = 'use prompt_role = "raw" and a dialect of plain text, whose tags end turns'
    elif len(tokens) != 1:
        line = f"the template ends a turn with {end}, which the tokenizer splits into {len(tokens)} tokens"
        fix = "add it to the tokenizer as a special token, and train its embedding"
    elif tokens[0] not in files.eos_ids:
        line = f"the template ends a turn with {end}, and sampling stops at {known}: turns run on to their limit"
        fix = f"add {tokens[0]} to eos_token_id in generation_config.json"
    elif own != end:
        level = "warning"
        line = f"the template ends a turn with {end}, but examples end with eos_token, {own}"
        fix = f"set eos_token to {end} before a supervised stage"
    else:
        level, line, fix = "ok", f"the template ends a turn with {end}; stops: {known}", ""
    return Finding(check="stop tokens", level=level, line=line, fix=fix)


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
