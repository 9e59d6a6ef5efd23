"""Whether a chat template only appends: the next prompt begins with what the policy saw and wrote.

Where it does not, sampled tokens are not what the next turn reads, and a trainer that lays the turns end to end trains
on texts that were never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from sleuth.model_check.conversation import Step, shared_length
from sleuth.model_check.finding import Finding, listed, shown
from sleuth.render import encode

FIXES = {
    "thoughts": "begin a new trajectory there (Sleuth's dialect chat does), or give the thoughts back and keep them by "
    "a template of your own",
    "prompt": "give turns back with what the prompt began them with, or set a flag so that it adds nothing",
    "other": "keep the sampled tokens and encode only what is new (Sleuth's dialect verl does)",
    "tokens": "keep the sampled tokens and encode only what is new (Sleuth does), or compare token ids before training",
}


def history_finding(way: str, steps: Sequence[Step], tokenizer: PreTrainedTokenizerFast) -> Finding:
    """One line on all turns. `way` is how they are given back: `written` or `parsed`."""
    check = f"history as {way}"
    broken = [(*describe(steps[: at + 1]), step.then) for at, step in enumerate(steps) if not step.appends]
    if broken:
        what, fix, then = broken[0]
        more = f"; and at {listed([name for _, _, name in broken[1:]])}" if len(broken) > 1 else ""
        line = f"at {then} the template {what}{more}"
        return Finding(check=check, level="warning", line=line, fix=FIXES[fix])
    line = f"append-only over {len(steps)} turns"
    if (merged := next(filter(None, (merge_at(step, tokenizer) for step in steps)), None)) is not None:
        return Finding(
            check=check,
            level="warning",
            line=f"{line}, but not token by token: encoded again as one text, {shown(merged)} is other tokens",
            fix=FIXES["tokens"],
        )
    return Finding(check=check, level="ok", line=f"{line}, also token by token")


def describe(steps: Sequence[Step]) -> tuple[str, str]:
    """What the template changed at the last of these steps, and the key of its fix."""
    step = steps[-1]
    lost = [
        str(number)
        for number, earlier in enumerate(steps, 1)
        if earlier.turn.thought in step.seen and earlier.turn.thought not in step.after
    ]
    if lost:
        several = "s" if len(lost) > 1 else ""
        return f"drops the thought{several} of turn{several} {listed(lost)}", "thoughts"
    at = shared_length(step.seen, step.after)
    for number, earlier in enumerate(steps, 1):
        if step.seen.startswith(earlier.prompt) and len(earlier.bare) <= at < len(earlier.prompt) and earlier.began:
            return f"drops {shown(earlier.prompt[at:])}, with which its prompt began turn {number}", "prompt"
    was, now = step.seen[at : at + 40], step.after[at : at + 40]
    return f"changes earlier text, {where(steps, at)}: {shown(now)} stands where {shown(was)} was", "other"


def where(steps: Sequence[Step], at: int) -> str:
    """Which part of the last step's text character `at` is in."""
    if at >= len(steps[-1].prompt):
        return f"in turn {len(steps)}"
    before = [number for number, step in enumerate(steps[:-1], 1) if len(step.prompt) <= at]
    return f"after the prompt of turn {before[-1]}" if before else "before the first turn"


def merge_at(step: Step, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """The text around the first token of the next prompt that is not one of those that were seen; None if all are."""
    seen = encode(tokenizer, step.prompt) + encode(tokenizer, step.wrote)
    again = encode(tokenizer, step.after)
    if again[: len(seen)] == seen:
        return None
    at = next((index for index, pair in enumerate(zip(seen, again, strict=False)) if pair[0] != pair[1]), len(again))
    return tokenizer.backend_tokenizer.decode(again[max(0, at - 1) : at + 2], skip_special_tokens=False)
