"""Stop tokens, padding and the generation config, and how the tags of Sleuth's dialects are encoded."""

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

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values of a generation config that leave the model's distribution as it is."""
AFTER = ("\n", "\n\n", " ", ".", "<", "a")
"""What may follow a tag."""
BEFORE = (" ", ">", "\n", "a")
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


def config_findings(files: ModelFiles, prompt: str) -> Iterator[Finding]:
    """Padding, the beginning-of-text token and the generation config. `prompt` is one that the template rendered; empty
    if there is no template."""
    tokenizer, check = files.tokenizer, "special tokens"
    found = []
    if tokenizer.pad_token_id is None:
        found.append(("the tokenizer has no pad_token", "set one that is no stop token"))
    elif tokenizer.pad_token_id in files.eos_ids:
        found.append(
            (
                f"pad_token is the stop token {tokenizer.pad_token}: a trainer that masks padding by its id never "
                "trains the end of a turn",
                "mask padding by position (Sleuth does), or set another pad_token",
            )
        )
    bos = tokenizer.bos_token
    if bos and prompt.startswith(str(bos)) and tokenizer("?")["input_ids"][:1] == [tokenizer.bos_token_id]:
        found.append(
            (
                f"template and tokenizer both begin a text with {bos}",
                "encode rendered texts with add_special_tokens=False (Sleuth does)",
            )
        )
    for line, fix in found:
        yield Finding(check=check, level="warning", line=line, fix=fix)
    if not found:
        yield Finding(check=check, level="ok", line=f"pad_token {tokenizer.pad_token} is no stop token")
    yield from _generation_findings(files)


def _generation_findings(files: ModelFiles) -> Iterator[Finding]:
    check, generation = "generation config", files.generation
    if files.generation_problem:
        yield Finding(
            check=check,
            level="problem",
            line=f"generation_config.json cannot be used: {files.generation_problem}",
            fix="fix the file, or remove it",
        )
        return
    if generation is None:
        yield Finding(
            check=check,
            level="warning",
            line="there is no generation_config.json: servers take stop tokens from config.json and the tokenizer",
            fix="write one with eos_token_id",
        )
        return
    if absent := [str(number) for number in sorted(files.eos_ids) if number >= len(files.tokenizer)]:
        yield Finding(
            check=check,
            level="problem",
            line=f"eos_token_id has {listed(absent)}, and the tokenizer has only {len(files.tokenizer):,} tokens",
            fix="name the tokens that end a turn",
        )
        return
    set_to = {
        key: value
        for key, neutral in NEUTRAL.items()
        if (value := getattr(generation, key, None)) is not None
        and value != neutral
        and not (key == "top_k" and value < 1)
    }
    if generation.do_sample and set_to:
        values = ", ".join(f"{key} = {value}" for key, value in set_to.items())
        yield Finding(
            check=check,
            level="warning",
            line=f"it sets {values}, which vLLM and SGLang take for requests that do not set them: samples are "
            "then not the policy's",
            fix="set all of them in requests, or start vLLM with --generation-config vllm (SGLang: "
            "--sampling-defaults openai)",
        )
        return
    yield Finding(check=check, level="ok", line="it does not change what servers sample")


def tag_findings(tokenizer: PreTrainedTokenizerFast) -> Iterator[Finding]:
    """Whether each tag of our dialects has one encoding, whatever stands beside it."""
    check = "tags"
    dialects = (*DIALECTS.values(), TOOLS_TEXT, ANSWER_ONLY)
    tags = list(dict.fromkeys(tag for dialect in dialects for tag in dialect.tags))
    unwritable = [tag for tag in tags if not _writable(tokenizer, tag)]
    if unwritable:
        yield Finding(
            check=check,
            level="problem",
            line=f"the tokenizer cannot write {listed(unwritable)}",
            fix="use a tokenizer with bytes as a fallback",
        )
    several = [tag for tag in tags if tag not in unwritable and len(encode(tokenizer, tag)) > 1]
    merged = {tag: sorted(neighbours) for tag in several if (neighbours := set(merges(tokenizer, tag)))}
    if not several:
        if not unwritable:
            yield Finding(check=check, level="ok", line=f"all {len(tags)} tags of Sleuth's dialects are one token each")
        return
    line = f"of {len(tags)} tags of Sleuth's dialects {len(several)} are several tokens ({_some(several)})"
    if not merged:
        yield Finding(check=check, level="ok", line=f"{line}; none merges with what stands beside it")
        return
    tag, neighbours = next(iter(merged.items()))
    yield Finding(
        check=check,
        level="warning",
        line=f"{line}, and {len(merged)} merge with their neighbours: {tag} has other tokens beside "
        f"{listed([shown(one) for one in neighbours])}",
        fix="find tags by text (Sleuth does), not by token ids, or add them as tokens: `tokens` of a supervised stage",
    )


def merges(tokenizer: PreTrainedTokenizerFast, tag: str) -> Iterator[str]:
    """The texts beside which a tag is encoded otherwise than alone."""
    alone = encode(tokenizer, tag)
    for text in AFTER:
        if encode(tokenizer, f"{tag}{text}")[: len(alone)] != alone:
            yield text
    for text in BEFORE:
        if encode(tokenizer, f"{text}{tag}")[-len(alone) :] != alone:
            yield text


def _writable(tokenizer: PreTrainedTokenizerFast, tag: str) -> bool:
    try:
        check_writable(tokenizer, [tag])
    except SleuthError:
        return False
    return True


def _some(tags: Sequence[str]) -> str:
    more = ["..."] if len(tags) > SHOWN_TAGS else []
    return ", ".join([*tags[:SHOWN_TAGS], *more])
