"""Alarms: what goes wrong in a run, detected from `metrics.jsonl`. Each detector is a pure function of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

Rows = Sequence[Mapping[str, Any]]
"""A stage's rows of `metrics.jsonl`, oldest first."""

RECENT = 5
"""Steps over which figures are averaged."""
BEFORE = 20
"""Steps between the two values that `length_runaway` compares."""
QUIET = 20
"""Steps for which a raised alarm is not repeated."""

MISMATCH = 0.01
"""Largest accepted `sampler_learner_kl`, in nats a token. In fp32 on a CPU, runs have shown 2e-12 at most."""
HOLLOW = 0.5
"""Largest accepted share of empty or broken thoughts, or of copied words, if it was smaller at first."""
NOTICED = 0.05
"""Nats a token above which a gain counts."""
TINY = 0.01
"""Smallest accepted share of the stored weights that a step changes."""


def diagnose(rows: Rows) -> dict[str, str]:
    """The alarms of the last row, name -> sentence, without those that were raised in the last QUIET steps."""
    known = {name for row in rows[-1 - QUIET : -1] for name in row.get("alarms", ())}
    found = {name: sentence for name, detect in DETECTORS.items() if (sentence := detect(rows))}
    return {name: sentence for name, sentence in found.items() if name not in known or name == "not_finite"}


def smoothed(rows: Rows, name: str) -> list[float]:
    """Moving averages of a figure over RECENT steps that have it, oldest first."""
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return [fmean(values[end - RECENT : end]) for end in range(RECENT, len(values) + 1)]


def reward_collapse(rows: Rows) -> str | None:
    """The reward fell below half of its maximum."""
    reward = smoothed(rows, "reward_mean")
    if not reward or max(reward) < 0.1 or reward[-1] >= max(reward) / 2:
        return None
    return (
        f"the reward fell from {max(reward):.2f} to {reward[-1]:.2f}: go back to the best checkpoint with --roll-back "
        "and a lower learning_rate"
    )


def entropy_collapse(rows: Rows) -> str | None:
    """The entropy fell to a tenth while the best episodes score far above the mean."""
    entropy, reward, best = (smoothed(rows, name) for name in ("entropy", "reward_mean", "reward_max"))
    if not entropy or not reward or not best:
        return None
    if entropy[-1] >= entropy[0] / 10 or reward[-1] >= 0.8 * best[-1]:
        return None
    return (
        f"the entropy fell from {entropy[0]:.3f} to {entropy[-1]:.3f} nats a token at a reward of {reward[-1]:.2f}, "
        f"where the best episodes get {best[-1]:.2f}: siblings are nearly equal, so little can be learned; raise "
        "loss.clip_high, set loss.beta, or lower learning_rate"
    )


def length_runaway(rows: Rows) -> str | None:
    """Responses are twice as long as BEFORE steps ago, without more reward."""
    length, reward = smoothed(rows, "response_tokens_mean"), smoothed(rows, "reward_mean")
    if len(length) <= RECENT or len(reward) != len(length):
        return None
    then = max(0, len(length) - 1 - BEFORE)
    if length[-1] < 2 * length[then] or reward[-1] > 1.05 * reward[then] + 0.01:
        return None
    return (
        f"responses grew from {length[then]:.0f} to {length[-1]:.0f} tokens an episode, and the reward "
        f"went from {reward[then]:.2f} to {reward[-1]:.2f}: lower env.turn_tokens, or set "
        'loss.normalise = "token", which does not favour long wrong answers'
    )


def tool_abandonment(rows: Rows) -> str | None:
    """The share of episodes that search fell to a quarter of its maximum."""
    searched = smoothed(rows, "searched")
    if not searched or max(searched) < 0.2 or searched[-1] >= max(searched) / 4:
        return None
    return (
        f"episodes that search fell from {max(searched):.0%} to {searched[-1]:.0%}: searching does not pay; check "
        "in the rollouts whether the index finds the answers and whether the policy reads the passages"
    )


def no_signal(rows: Rows) -> str | None:
    """RECENT steps without a group to learn from, and why; none where a teacher is followed."""
    last = rows[-RECENT:]
    followed = any(row.get("teacher_kl") is not None for row in last)
    if len(last) < RECENT or followed or any(row.get("nonzero_advantage_fraction") != 0 for row in last):
        return None
    rewards = [row.get("reward_mean") for row in last]
    best = max((row["reward_max"] for row in rows if row.get("reward_max") is not None), default=0.0)
    if all(reward is None for reward in rewards):
        why = "every score is missing: repair the scorer; the rollouts give the reasons"
    elif all(reward is not None and reward == best > 0 for reward in rewards):
        why = "every episode is right: use harder questions"
    elif all(not reward for reward in rewards):
        why = "every episode is wrong: use easier questions, more samples_per_prompt, or a stronger base"
    else:
        why = "siblings always score the same: use questions that the policy answers some of the time"
    return f"no group carried a signal in {RECENT} steps; {why}"


def gamed_reward(rows: Rows) -> str | None:
    """A trick of the red team is paid as much as an honest answer."""
    won = rows[-1].get("tricks_won") if rows else None
    if not won:
        return None
    return (
        f"{', '.join(won)}: paid as much as an honest answer ({rows[-1]['honest_paid']:.2f}); a policy "
        'may find that: set sum = "recommended", or use another judge'
    )


def hollow_thoughts(rows: Rows) -> str | None:
    """Thoughts became empty, broken, copied, or independent of their text."""
    shares = {name: smoothed(rows, name) for name in ("empty_thoughts", "thought_artefacts", "copied")}
    grown = {name: values[-1] for name, values in shares.items() if values and values[-1] - values[0] > HOLLOW / 2}
    gain, swapped = smoothed(rows, "gain"), smoothed(rows, "swapped_gain")
    if grown.get("empty_thoughts", 0) > HOLLOW:
        what = f"{grown['empty_thoughts']:.0%} of the thoughts hold no word: an empty thought pays better"
    elif grown.get("thought_artefacts", 0) > HOLLOW:
        what = f"{grown['thought_artefacts']:.0%} of the thoughts hold tags, ends of text or broken characters"
    elif grown.get("copied", 0) > HOLLOW:
        what = f"{grown['copied']:.0%} of the words of thoughts are copied from the text before them"
    elif gain and swapped and gain[-1] > NOTICED and swapped[-1] > 0.9 * gain[-1]:
        what = f"thoughts of other texts gain {swapped[-1]:.2f} nats a token, and the text's own {gain[-1]:.2f}"
    else:
        return None
    return f"{what}; read a few, go back with --roll-back, lower learning_rate, or set loss.beta"


def mismatch(rows: Rows) -> str | None:
    """The sampler is not the policy that is trained. Steps that are off-policy by `max_policy_lag` do not count."""
    one_policy = [row for row in rows[-RECENT:] if not row.get("off_policy_fraction")]
    values = [abs(row["sampler_learner_kl"]) for row in one_policy if row.get("sampler_learner_kl") is not None]
    if not values or max(values) < MISMATCH:
        return None
    return (
        f"sampler and learner disagree by {max(values):.2g} nats a token (sampler_learner_kl): the sampler has other "
        "weights, another temperature or another precision than the learner"
    )


def tiny_updates(rows: Rows) -> str | None:
    """Updates are too small to change the stored weights."""
    shares = [row["changed_weights_fraction"] for row in rows if row.get("loss") is not None][-RECENT:]
    if len(shares) < RECENT or max(shares) >= TINY:
        return None
    return (
        f"a step changes {max(shares):.2%} of the stored weights: its updates are smaller than the spacing of their "
        'dtype; raise learning_rate, or train with dtype = "float32"'
    )


def not_finite(rows: Rows) -> str | None:
    """Loss or gradient is NaN or infinite; the stage recorded it."""
    return rows[-1].get("not_finite") if rows else None


DETECTORS: dict[str, Callable[[Rows], str | None]] = {
    "reward_collapse": reward_collapse,
    "entropy_collapse": entropy_collapse,
    "length_runaway": length_runaway,
    "tool_abandonment": tool_abandonment,
    "no_signal": no_signal,
    "gamed_reward": gamed_reward,
    "hollow_thoughts": hollow_thoughts,
    "mismatch": mismatch,
    "tiny_updates": tiny_updates,
    "not_finite": not_finite,
}
"""By the name of their key in `[stage.alarms]`."""
