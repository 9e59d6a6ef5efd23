"""What can be seen of thoughts without knowing what they are worth: that they are short, copied, or no thoughts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from statistics import fmean

from sleuth.dialects import Tags
from sleuth.envs.thought import thinking_of
from sleuth.rewards.preference.mechanics import BROKEN, copying, repetition
from sleuth.types import Group

SOMETHING = re.compile(r"[^\W_]")


def thought_signs(groups: Sequence[Group], tags: Tags, ends: Collection[int] = ()) -> dict[str, float]:
    """The side of a step's row that looks at its thoughts; means over them.

    `thought_tokens_mean` counts the closing tag that a policy wrote; `closed` is the share that the policy closed,
    `empty_thoughts` of those without a letter or a digit, `thought_artefacts` of those that hold a tag, a token that
    ends a text (`ends`), or half a character. `copied` is the share of a thought's runs of eight words that stand in
    the text before it, `repeated` of its runs of three words that come again.
    """
    found = [
        (thinking_of(episode.trajectory, tags.close), group.task.question)
        for group in groups
        for episode in group.episodes
    ]
    texts = [(thinking.thought.text.removesuffix(tags.close), before) for thinking, before in found]
    strange = (tags.open, tags.close, BROKEN)
    return {
        "thought_tokens_mean": fmean(len(thinking.thought.tokens) for thinking, _ in found),
        "closed": fmean(thinking.closed_by == "policy" for thinking, _ in found),
        "empty_thoughts": fmean(not SOMETHING.search(text) for text, _ in texts),
        "thought_artefacts": fmean(
            any(sign in text for sign in strange) or any(token in ends for token in thinking.thought.tokens)
            for (text, _), (thinking, _) in zip(texts, found, strict=True)
        ),
        "copied": fmean(1 - copying(text, before) for text, before in texts),
        "repeated": fmean(1 - repetition(text, before) if SOMETHING.search(text) else 0.0 for text, before in texts),
    }
