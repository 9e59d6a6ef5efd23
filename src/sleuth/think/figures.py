"""The figures of thoughts in texts and of preferences. Their values come from probes, gates and comparisons."""

from __future__ import annotations

from functools import partial

from sleuth.evaluation.figures import Figure
from sleuth.evaluation.intervals import bootstrap_mean, share
from sleuth.types import StepFigure

_mean = partial(Figure, used="elsewhere", interval=bootstrap_mean)
_nats = partial(_mean, unit="nats a token")
_share = partial(Figure, used="elsewhere", interval=share)

FIGURES = (
    _nats(
        "gain_sampled",
        "Gain of its own thoughts, in nats a token",
        "How much likelier its own thoughts make the text than an empty one.",
    ),
    _nats("blank_nll", "Nats a token behind an empty thought", "The most that can be gained."),
    _mean("gained_share", "Share of these that its own thoughts gain", "`gain_sampled` over `blank_nll`."),
    _nats(
        "over_generic",
        "Its own over phrases that fit any text",
        "How much likelier its own thoughts make the text than such phrases.",
    ),
    _nats("over_swapped", "Its own over thoughts of other texts", "Likewise, than its thoughts in another text."),
    _nats("over_teacher", "Its own over a teacher's", "Likewise, than a teacher's thoughts."),
    _share(
        "right_sampled",
        "Right endings behind its own thoughts",
        "Share of sampled continuations that say the same as the text's own.",
    ),
    _share("right_blank", "Right endings behind an empty one", "Likewise, behind an empty thought."),
    _mean("reward_mean", "Reward of its own thoughts", "Mean reward of the thoughts of a gate.", unit="reward"),
    _share("no_signal", "Groups without signal", "Share of groups whose scores are all equal."),
    _share("closed", "Thoughts that it closed itself", "Share of thoughts with a closing tag."),
    _mean("thought_tokens", "Tokens of its own thoughts, with their tags", "Tokens of a thought.", unit="tokens"),
    _nats("thought_nll", "Nats a token of a teacher's thoughts", "How unlikely the thoughts of the texts are."),
    _nats("text_nll", "Nats a token of the text", "How unlikely the text around the thoughts is."),
    _mean(
        "win_rate",
        "Continuations that are preferred",
        "Share of comparisons that its continuations win.",
        short="preferred",
    ),
    _mean("right_over_*", "", "How much more often than in the arm of that name."),
    _share("right_*", "", "Share of right endings in the arm of that name."),
    _share("mean_at_*", "", "Share of right answers among so many samples of a problem."),
    _share("pass_at_*", "", "Chance of a right answer among so many samples of a problem."),
)

_thoughts = partial(StepFigure, part="Thoughts")
_pools = partial(StepFigure, part="Pools of `online_dpo`")

STEPS = (
    _thoughts("gain", "How much likelier a thought made the true suffix than an empty one, in nats a token."),
    _thoughts("swapped_gain", "The same for a thought of another text."),
    _thoughts("blank_nll", "Nats a token of the suffix behind an empty thought: the most that can be gained."),
    _thoughts("thought_tokens_mean", "Tokens of a thought."),
    _thoughts("closed", "Share of thoughts that the policy closed itself."),
    _thoughts("empty_thoughts", "Share of thoughts without a letter or a digit."),
    _thoughts("thought_artefacts", "Share of thoughts that contain a tag, an end-of-text token or half a character."),
    _thoughts("copied", "Share of a thought's runs of eight words that stand in the text before it."),
    _thoughts("repeated", "Share of a thought's runs of three words that occur again in it."),
    _pools("judged_by", "What candidates are judged by."),
    _pools("ties", "Share of pools in which all candidates are equally good."),
    _pools("dropped", "Share of pools with too few verdicts."),
    _pools("chosen_over_original", "How often the best candidate is better than the original; a tie counts half."),
    _pools("rollouts_over_original", "How often one of the policy's own is."),
    _pools("chosen_by_*", "Share of pools whose best candidate was written by the policy or the source."),
    _pools("wins", "Share of the other candidates that one is better than."),
    _pools("unjudged", "Share of comparisons without a verdict."),
    _pools("margin", "DPO's implicit reward of the best over the worst: beta times the difference of their gains."),
    _pools("accuracy", "Share of pairs whose margin is above 0."),
    _pools("chosen_gain", "How much likelier the best is than under the reference, in nats."),
    _pools("rejected_gain", "The same for the worst."),
)
