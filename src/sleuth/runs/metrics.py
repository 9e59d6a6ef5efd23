"""`metrics.jsonl`: one JSON object a step."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sleuth import family
from sleuth.host.atomic import write_text
from sleuth.recipe.renamed import renamed_figures
from sleuth.runs.chain import record_rows, recorded
from sleuth.types import SleuthError, StepFigure

STEPS: dict[str, tuple[StepFigure, ...]] = {
    "Episodes": (
        StepFigure(
            "reward_mean",
            "Mean score of the scored episodes; in `online_dpo`, of the policy's own continuations.",
            "Reward",
            "mean over the step's episodes",
            compared=True,
        ),
        StepFigure("reward_max", "Best score of the step."),
        StepFigure(
            "em",
            "Share of answers that match a golden answer exactly, read strictly, whatever is paid.",
            "Exact match",
            "share of episodes",
            top=1.0,
            compared=True,
        ),
        StepFigure("searched", "Share of episodes with at least one search."),
        StepFigure("searches", "Searches of all episodes that found something."),
        StepFigure("seconds_searches", "Seconds in which at least one search was waited for, on the first rank."),
        StepFigure("searches_mean", "Searches in an episode.", "Searches", "mean an episode", compared=True),
        StepFigure(
            "response_tokens_mean",
            "Tokens that the policy wrote in an episode.",
            "Response length",
            "mean policy tokens an episode",
            compared=True,
        ),
        StepFigure("calls_mean", "Calls of tools in an episode; absent in a step without any."),
        StepFigure("call_errors", "Share of the calls whose result is an error."),
        StepFigure(
            "nonzero_advantage_fraction",
            "Share of groups whose scores differ; the others teach nothing. In `online_dpo`, of pools with a pair.",
            "Groups with signal",
            "share of groups whose scores differ",
            top=1.0,
            compared=True,
        ),
        StepFigure(
            "missing_fraction",
            "Share of episodes without a score, because a retriever, a judge or your own code failed.",
            "Missing verdicts",
            "share of episodes",
        ),
        StepFigure("dropped_groups", "Groups with fewer than two scores."),
        StepFigure("replaced_groups", "Groups without signal that `replace_no_signal` replaced."),
    ),
    "Parts of the score (means over the episodes that have them)": (
        StepFigure("score_*/*", "`score_NAME/PART`: a part of the `Score` that your own function NAME returned."),
        StepFigure("score_*", "What the named published scorer, or your own function of that name, gives."),
        StepFigure("hook_*/*", "`hook_NAME/FIGURE`: a figure that your own hook NAME measured."),
        StepFigure("eval_*/*", "`eval_NAME/FIGURE`: a figure of the evaluation NAME at this step (`evaluate_every`)."),
    ),
    "The update": (
        StepFigure(
            "entropy",
            "Entropy of the policy, in nats a token; without an update, estimated from the sampled tokens.",
            "Entropy",
            "nats a trained token",
            compared=True,
        ),
        StepFigure(
            "kl",
            "KL divergence to the stage's first weights, in nats a token; null without one in the loss.",
            "KL to the reference",
            "nats a trained token",
        ),
        StepFigure(
            "sampler_learner_kl",
            "KL divergence between sampler and learner on the sampled tokens, in nats a token.",
            "Mismatch KL",
            "sampler against learner, nats a token",
        ),
        StepFigure(
            "clip_fraction",
            "Share of trained tokens whose ratio was outside the bounds; null where every ratio is 1.",
            "Clipped",
            "share of trained tokens",
        ),
        StepFigure(
            "teacher_kl", "KL divergence from the policy to its teacher on the sampled tokens, in nats a token."
        ),
        StepFigure("guided_fraction", "Share of the episodes that follow a teacher."),
        StepFigure(
            "off_policy_fraction", "Share of sampled tokens that were written by older weights than the step's."
        ),
        StepFigure(
            "policy_lag_mean", "Updates by which the weights that sampled a token lag behind: the mean over tokens."
        ),
        StepFigure("old_logprobs", 'Where the ratio starts: "sampler" or "learner".'),
        StepFigure("gradient_norm", "Global norm of the gradient before clipping."),
        StepFigure("learning_rate", "Learning rate of this step."),
        StepFigure("beta", "Weight of the KL term in this step, where it has a schedule."),
        StepFigure("temperature", "Sampling temperature of this step, where it has a schedule."),
        StepFigure(
            "changed_weights_fraction",
            "Share of the stored weights that the step changed; of several updates, the most.",
            "Weights that changed",
            "share of stored elements",
        ),
        StepFigure(
            "updates",
            "Updates on the step's episodes, if the recipe asks for several. Then `loss`, `entropy`, `kl` "
            "and `teacher_kl` are means over the first pass, `sampler_learner_kl` is that of the first "
            "update, and `clip_fraction` and `gradient_norm` are means over all updates.",
        ),
        StepFigure("tokens_trained", "Tokens with a weight in the loss."),
        StepFigure("tokens_computed", "Tokens of the learner's forward pass, each shared prefix once."),
        StepFigure("tokens_dense", "Tokens of the same rows without sharing."),
        StepFigure(
            "seconds_rollout",
            "Seconds in which the step waited for its episodes.",
            "Seconds a step",
            "rollout below, update on top",
        ),
        StepFigure(
            "seconds_update",
            "Seconds of the update, from scored episodes to published weights.",
            "Seconds a step",
            "rollout below, update on top",
        ),
        StepFigure("loss", "Loss of the step; null where nothing was trained.", "Loss", "of the whole step"),
    ),
    "Every row": (
        StepFigure("stage", "Name of the stage."),
        StepFigure("step", "Optimiser step of the stage, counted from 1."),
        StepFigure("alarms", "Names of the alarms that this step raised; absent where it raised none."),
        StepFigure("not_finite", "Why no update was made: the loss or the gradient was NaN or infinite."),
    ),
    "Judges": (
        StepFigure("seconds_judges", "Seconds in which questions waited for a served judge, of that with the most."),
        StepFigure("judge_asked", "Questions put to the judges in this step."),
        StepFigure("judge_cached", "Questions that had been answered before."),
        StepFigure("judge_missing", "Questions without a verdict."),
        StepFigure("judge_invalid", "Questions whose answer was no verdict, twice."),
    ),
    "Supervised stages": (
        StepFigure(
            "held_out_*",
            "A figure of rows that are never trained, where the stage saves: by kind of world text the share "
            'of tokens predicted right, with `held_out` the figures of thoughts, and of `kind = "reading"` '
            "exact match and F1 on held-out articles, exact match of a sliding window, and the difference.",
        ),
        StepFigure(
            "copying_loss",
            "With `copying_weight`: minus the log of the copying head's attention to the token that is "
            "copied; the mean over trained tokens by their weights, 0 for those that copy none.",
        ),
    ),
    "Pools of servers": (
        StepFigure("turns_redrawn", "Turns that were requested again from another server."),
        StepFigure("turns_resumed", "Turns that went on with newer weights after an update; twice if after two."),
        StepFigure("servers_reloaded", "Servers that had lost the weights and loaded them again."),
        StepFigure("seconds_publish", "Seconds to write the weights and load them on every server."),
        StepFigure("seconds_client", "Seconds of a core that the first rank took while servers generated."),
        StepFigure("seconds_turns", "Some turns: seconds, sampled tokens, and turns under way at their server."),
    ),
}
"""The figures of the core, by their headings in the reference. The others are rows of their rewards and families."""


@family.cached
def step_figures() -> tuple[StepFigure, ...]:
    """The rows of all figures, in the order of the reference and of charts: what episodes show before the update."""
    core = {part: [replace(row, part=part) for row in rows] for part, rows in STEPS.items()}
    rewards = [row for table in family.tables("rewards") for row in table.figures]
    rows = family.figures()
    families = [row if isinstance(row, StepFigure) else row.step_figure() for row in rows if row.in_steps]
    episodes = core.pop("Episodes")
    return (*episodes, *rewards, *families, *(row for rows in core.values() for row in rows))


def glossary() -> dict[str, dict[str, str]]:
    """What each figure of a row means, by the part of a run that it belongs to. `*` stands for the rest of a name."""
    parts: dict[str, dict[str, str]] = {}
    for row in step_figures():
        parts.setdefault(row.part, {})[row.name] = row.meaning
    return parts


def meaning_of(figure: str) -> str | None:
    """The meaning of a figure, such as `meaning_of("score_search_r1")`; None without one."""
    rows = sorted(step_figures(), key=lambda row: "*" in row.name)
    return next((row.meaning for row in rows if fnmatchcase(figure, row.name)), None)


def as_written(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures as a row of the file has them, without its stage and step."""
    return {name: _finite(value) for name, value in figures.items() if name not in ("stage", "step")}


class MetricsFile:
    """The figures of a run's steps, in order. Steps of a stage are counted from 1.

    `metrics.append("grpo", 12, {"reward_mean": 0.31})` writes `{"stage": "grpo", "step": 12, "reward_mean": 0.31}`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hashed, self._sha256 = 0, hashlib.sha256()  # of so many bytes at the beginning

    def append(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Writes one step's row completely or not at all. A figure that is not finite is written as null."""
        line = json.dumps({"stage": stage, "step": step} | as_written(figures), allow_nan=False).encode() + b"\n"
        with open(self.path, "ab") as file:
            end = file.tell()
            try:
                if self._hashed != end:
                    self._sha256 = hashlib.sha256(self.path.read_bytes())
                self._sha256.update(line)
                self._hashed = end + len(line)
                record_rows(self.path, self._hashed, self._sha256.hexdigest())
                file.write(line)
                file.flush()
            except OSError:
                os.truncate(self.path, end)
                raise

    def amend(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        """Adds figures to the row of a step, if there is one."""
        rows = self.rows()
        for row in rows:
            if (row["stage"], row["step"]) == (stage, step):
                row.update({name: _finite(value) for name, value in figures.items()})
        self._write(rows)

    def rows(self, damaged: list[int] | None = None) -> list[dict[str, Any]]:
        """All rows, with renamed figures under their new names, and None for a number that no float holds. An
        incomplete last line is skipped. Another line that is no row is an error; with `damaged`, its number is appended
        there instead."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if number == len(lines):
                    break
                row = None
            if isinstance(row, dict) and isinstance(row.get("stage"), str) and isinstance(row.get("step"), int):
                rows.append(renamed_figures({name: _finite(value) for name, value in row.items()}))
            elif damaged is None:
                raise SleuthError(
                    f"{self.path}:{number}: is not a JSON object with stage and step; repair or remove it"
                )
            else:
                damaged.append(number)
        return rows

    def repair(self) -> None:
        """Removes an incomplete last line, so that the next row begins on its own line."""
        if self.path.exists():
            self._write(self.rows())

    def rewind(self, stage: str, step: int) -> None:
        """Removes the rows of `stage` after `step`, from which the run continues and writes them again."""
        self._write([row for row in self.rows() if row["stage"] != stage or row["step"] <= step])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not self.path.exists() or text.encode() != self.path.read_bytes():
            self._hashed = 0
            with recorded(self.path):
                write_text(self.path, text)

    def sync(self) -> None:
        """Returns when all rows are on the disk."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())


def _finite(value: Any) -> Any:
    return None if isinstance(value, int | float) and not abs(value) <= sys.float_info.max else value
