"""What a run watches itself for: `[stage.alarms]`."""

from __future__ import annotations

from typing import Literal

from sleuth.recipe.strict import StrictModel

AlarmAction = Literal["off", "warn", "pause", "stop"]


class AlarmsRecipe(StrictModel):
    """What happens when a disease shows: it is said ("warn"); or the run saves and ends, and the same command goes on
    ("pause"); or it ends where it last saved ("stop"). Rolling back to the best checkpoint: `sleuth train --roll-back`.
    """

    reward_collapse: AlarmAction = "warn"
    """The reward fell to less than half of the best it had been."""
    entropy_collapse: AlarmAction = "warn"
    """The policy hardly varies any more, and is not good enough for that to be the end of learning."""
    length_runaway: AlarmAction = "warn"
    """What the policy writes became twice as long, and not better."""
    tool_abandonment: AlarmAction = "warn"
    """Episodes used to search, and no longer do."""
    no_signal: AlarmAction = "warn"
    """In no group do the scores differ."""
    judge_divergence: AlarmAction = "warn"
    """The judge that watches agrees less with the one that pays than it did."""
    gamed_reward: AlarmAction = "warn"
    """A known trick is paid no less than an honest answer."""
    hollow_thoughts: AlarmAction = "warn"
    """Thoughts came to say nothing of their text: empty, copied from it, broken, or as good for any other text."""
    mismatch: AlarmAction = "warn"
    """Sampler and learner disagree on the log-probabilities of the same tokens."""
    tiny_updates: AlarmAction = "warn"
    """Updates too small to change the stored weights."""
    not_finite: AlarmAction = "stop"
    """Loss or gradient is no number; "warn" goes on without that update."""
