"""The certificate of a model's thoughts: whether they beat the controls, and how that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.data.questions import questions_hash
from sleuth.evaluation.intervals import Measured
from sleuth.runs.eval_file import write_eval
from sleuth.think.tables import ProbeRecipe
from sleuth.think.thoughts import Spot

CERTIFICATE = "thoughts.json"
"""The name of its file in the folder of the model."""
CONTROLS = {
    "blank": "an empty one",
    "generic": "phrases that fit any text",
    "swapped": "thoughts of other texts",
}
"""What a useful thought has to beat, in words. `swapped` is for models that never saw an empty thought: any other beats
it, and only a thought about this text gains more here than elsewhere."""
ARMS = (*CONTROLS, "within", "teacher")


def certificate(
    stage: ProbeRecipe,
    spots: Sequence[Spot],
    figures: Mapping[str, Measured],
    needed: Mapping[str, int | None],
    seed: int,
) -> dict[str, Any]:
    """The contents of the certificate's file: the verdict, its figures, and the settings and texts of the probe."""
    over = {name: figures[f"over_{name}"] for name in ARMS if f"over_{name}" in figures}
    passes, claim = verdict(over)
    return {
        "passes": passes,
        "claim": claim,
        **{f"over_{name}": figure.as_json() for name, figure in over.items()},
        "documents_needed": {name: needed.get(f"over_{name}") for name in CONTROLS},
        "texts_sha256": questions_hash([spot.task for spot in spots]),
        "samples": stage.samples,
        "temperature": stage.temperature,
        "thought_tokens": stage.env.thought_tokens,
        "seed": seed,
        "sleuth_version": __version__,
    }


def verdict(over: Mapping[str, Measured]) -> tuple[bool, str]:
    """Whether the whole interval of a model's gain over each control is above 0, and the claim in words. A control that
    was not measured is not beaten."""
    lost = [words for name, words in CONTROLS.items() if name not in over or not (over[name].low or 0) > 0]
    beaten = "are not shown to beat" if lost else "beat"
    claim = f"its own thoughts {beaten} {_join(lost or [*CONTROLS.values()])}"
    return not lost, f"{claim}, by what they make of the true suffix, on {over['blank'].n} documents"


def verdict_line(contents: Mapping[str, Any]) -> str:
    """The verdict of a probe's file in one line."""
    certified = contents["certificate"]
    over = ", ".join(
        f"over {name} {Measured(**contents[f'over_{name}']).formatted()}"
        for name in ARMS[:-1]
        if f"over_{name}" in contents
    )
    return f"{'PASS' if certified['passes'] else 'no certificate'}: {certified['claim']} ({over} nats a token)"


def _join(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def write_certificate(model: str, contents: Mapping[str, Any]) -> Path | None:
    """Writes it into the model's folder and returns the file; None if there is no such folder, as for a hub id."""
    if not Path(model).is_dir():
        return None
    file = Path(model) / CERTIFICATE
    write_eval(file, contents["certificate"])
    return file
