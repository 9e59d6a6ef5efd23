"""Checkpoints: a Hugging Face folder that any loader reads, with the state that resuming needs beside it.

`step-000100/` holds the model (safetensors), the tokenizer, `protocol.json`, `README.md`, `state/` and `SHA256SUMS`. It
is written as `step-000100.partial` and renamed once it is on the disk, and renamed back before it is removed, so a
folder with its final name is always complete; its checksums show whether its bytes are still those that were written. A
milestone is a checkpoint whose state was removed. torch is imported where it is used: a report lists checkpoints
without it.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.atomic import DAMAGED, PARTIAL, replacing_folder, write_text
from sleuth.host.checksums import damage, drop_checksums, list_again, lists, of_model, require_intact, write_checksums
from sleuth.host.disk import SLACK, recognising_full_disk, require_free
from sleuth.host.model_path import require_file
from sleuth.recipe import Recipe, TrainingRecipe, load_recipe
from sleuth.recipe.sweep import shared_stage_count
from sleuth.runs.chain import forget, recorded, step_name, step_of
from sleuth.runs.manifest import SAVED_AS, Manifest, changes_since, saved_as
from sleuth.runs.metrics import MetricsFile
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


STATE = Path("state") / "state.pt"
CARD = "README.md"
"""Written again after each evaluation; read by people only. It has no checksum."""


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    card: str,
    protocol: ProtocolCard | None = None,
    state: Mapping[str, Any] | None = None,
    beside: Mapping[str, str] | None = None,
    run: str | None = None,
) -> None:
    """Writes a checkpoint completely or not at all; its state names the `run` that it belongs to, and its step.

    `card` is the text of `README.md`; `beside` holds the texts of other files by name. `state` is what the stage needs
    to resume: tensors and plain Python values only, because it is loaded without unpickling anything else. Raises
    TypeError that names any other value.
    """
    import torch

    from sleuth.learn.adapters import write_model

    require_plain(state, "state")
    with replacing_folder(folder) as partial, recognising_full_disk(folder.parent):
        require_free(folder.parent, checkpoint_bytes(model, state or {}))
        write_model(model, partial)
        tokenizer.save_pretrained(partial)
        (partial / CARD).write_text(card, encoding="utf-8")
        for name, text in (beside or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
        if protocol is not None:
            protocol.write(partial)
        if state is not None:
            (partial / STATE).parent.mkdir()
            torch.save(dict(state), partial / STATE)
            if run is not None:
                _name(partial, run, step_of(folder))
        write_checksums(partial, but=(CARD,))


def checkpoint_bytes(model: PreTrainedModel, state: Mapping[str, Any]) -> int:
    """The approximate size of a checkpoint on the disk, in bytes; tied weights count once."""
    weights = {id(weight): weight.nbytes for weight in model.parameters()}
    return sum(weights.values()) + sum(_tensor_bytes(state)) + SLACK


def load_state(checkpoint: Path, *, mapped: bool = False) -> dict[str, Any]:
    """The stage's state, with tensors on the CPU; memory-mapped if `mapped`, for ranks that each read a part. Verifies
    no checksum.

    Raises SleuthError if it is missing or cannot be read."""
    import torch

    path = checkpoint / STATE
    require_file(path)
    if not path.exists():
        raise SleuthError(f"{path}: no such file; this checkpoint can be evaluated but not resumed")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SleuthError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(state, dict) or not state:
        raise SleuthError(f"{path}: holds no state")
    return state


def checkpoints_in(directory: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    complete = (path for path in directory.iterdir() if re.fullmatch(r"step-\d{6,}", path.name) and path.is_dir())
    return sorted(complete, key=step_of)


def resumable(checkpoint: Path) -> bool:
    """Whether a stage can resume from it, if it is intact."""
    return (checkpoint / STATE).exists()


def saved_with_state(checkpoint: Path) -> bool:
    """Whether it has a state, or had one that is missing by accident."""
    return resumable(checkpoint) or lists(checkpoint, STATE.as_posix())


def require_own(checkpoint: Path, run: str | None) -> None:
    """Raises SleuthError unless a checkpoint is intact, and was saved as its name says; see `require_named`."""
    require_intact(checkpoint)
    require_named(checkpoint, run)


def require_named(checkpoint: Path, run: str | None) -> None:
    """Raises SleuthError unless a checkpoint was saved by `run` at the step of its name, as far as it says so."""
    damaged = damage(checkpoint, lambda name: name == SAVED_AS.as_posix()) is not None
    named = None if damaged else saved_as(checkpoint)
    if named is None or named == (run or named[0], step_of(checkpoint)):
        return
    whose = "this run" if run in (None, named[0]) else f"another run ({named[0]}, and this is {run})"
    raise SleuthError(
        f"{checkpoint}: was saved at step {named[1]} of {whose}; put back what was here, or move it away to continue "
        "from the checkpoint before it"
    )


def _name(checkpoint: Path, run: str, step: int) -> None:
    write_text(checkpoint / SAVED_AS, json.dumps({"run": run, "step": step}) + "\n")


def latest_checkpoint(directory: Path) -> Path | None:
    """The checkpoint of the highest step, if there is one."""
    return next(reversed(checkpoints_in(directory)), None)


def prune_checkpoints(
    directory: Path,
    newest: Path,
    *,
    keep: int,
    milestone_every: int | None = None,
    best: Path | None = None,
    after: int = 0,
    until: int | None = None,
    off_schedule: Set[Path] = frozenset(),
) -> None:
    """Removes the checkpoints of a stage that are not needed once `newest` is saved, and partial ones of killed
    processes.

    Kept are the `keep` newest that are not `off_schedule`, and `best`; and without state those whose step, counted from
    `after`, is a multiple of `milestone_every`. Checkpoints up to step `after` are an earlier stage's and stay. Those
    of later steps, which belong to an abandoned continuation, go up to step `until`, or all.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: a run keeps at least its last checkpoint")
    existing, last = checkpoints_in(directory), step_of(newest)
    with_state = [path for path in existing if after < step_of(path) <= last and resumable(path)]
    on_schedule = [path for path in with_state if path not in off_schedule]
    for path in [*on_schedule[:-keep], *(path for path in with_state if path in off_schedule)]:
        if path == best:
            continue
        if milestone_every is not None and (step_of(path) - after) % milestone_every == 0:
            remove_state(path)
        else:
            remove_checkpoint(path)
    for path in existing:
        if last < step_of(path) and (until is None or step_of(path) <= until):
            remove_checkpoint(path)
    for path in directory.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(path)


def remove_checkpoint(checkpoint: Path) -> None:
    """Removes a checkpoint. It is renamed first, so that a half-removed one is never taken for a checkpoint."""
    doomed = checkpoint.with_name(checkpoint.name + ".removed" + PARTIAL)
    shutil.rmtree(doomed, ignore_errors=True)
    forget(checkpoint)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def remove_state(checkpoint: Path) -> None:
    """Removes the state: the model stays, but training cannot resume from it."""
    with recorded(checkpoint):
        drop_checksums(checkpoint, lambda name: not of_model(name))
        (checkpoint / STATE).unlink()
        shutil.rmtree((checkpoint / STATE).parent)


def set_aside(checkpoint: Path) -> Path:
    """Renames a damaged checkpoint, so that it is no longer taken for one; returns its new name."""
    remove_set_aside(checkpoint)
    forget(checkpoint)
    return checkpoint.rename(checkpoint.with_name(checkpoint.name + DAMAGED))


def remove_set_aside(checkpoint: Path) -> None:
    """Removes the damaged checkpoint that this one replaces, if there is one."""
    shutil.rmtree(checkpoint.with_name(checkpoint.name + DAMAGED), ignore_errors=True)


def steps_set_aside(directory: Path) -> list[int]:
    """The steps of damaged checkpoints that were not replaced yet."""
    names = (path.name.removesuffix(DAMAGED) for path in directory.glob(f"step-*{DAMAGED}"))
    return [step_of(Path(name)) for name in names if re.fullmatch(r"step-\d{6,}", name)]


def _tensor_bytes(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensor_bytes(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensor_bytes(inner)
    elif hasattr(value, "nbytes"):
        yield value.nbytes


def require_plain(value: Any, where: str) -> None:
    """Raises TypeError that names what of a state is neither a tensor nor a plain value."""
    import torch

    if isinstance(value, Mapping):
        for name, inner in value.items():
            require_plain(name, f"a key of {where}")
            require_plain(inner, f"{where}[{name!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            require_plain(inner, f"{where}[{index}]")
    elif type(value) not in (type(None), bool, int, float, str, bytes) and not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}: a checkpoint's state is tensors and plain values only")


def reuse_checkpoints(run: RunFolder, others: Iterable[Path]) -> None:
    """Copies finished stages from another run into a `run` that has trained nothing yet.

    Of the run folders `others`, the one that shares most stages gives its checkpoints and metrics rows. Draws are keyed
    by seed and stage, so these are the bytes that the run would have computed. Files are hard-linked where possible."""
    if checkpoints_in(run.checkpoints):
        return
    done = [(other, ends) for other in others if other != run.path and (ends := _shared_ends(run.recipe, other))]
    if not done:
        return
    other, ends = max(done, key=lambda pair: len(pair[1]))
    rows = MetricsFile(other / "metrics.jsonl").rows()
    for stage, _ in ends:
        run.metrics.rewind(stage, 0)  # rows of a process that was killed here
        for row in (row for row in rows if row["stage"] == stage):
            figures = {name: value for name, value in row.items() if name not in ("stage", "step")}
            run.metrics.append(stage, row["step"], figures)
    for _, end in ends:
        copy = run.checkpoints / end.name
        with recorded(copy), replacing_folder(copy) as partial:
            shutil.copytree(end, partial, copy_function=_linked, dirs_exist_ok=True)
            _name(partial, run.manifest.run or "", step_of(end))
            list_again(partial, SAVED_AS.as_posix())
    run.say(f"{' and '.join(stage for stage, _ in ends)}: same recipe and seed as in {other}; copied from there")


def _computed_alike(other: Path) -> bool:
    """Whether another run began with the libraries and the processor of this process."""
    try:
        return not changes_since(Manifest(other / "manifest.json").read())
    except SleuthError:
        return False


def _shared_ends(recipe: Recipe, other: Path) -> list[tuple[str, Path]]:
    """The leading stages that `other` has finished and `recipe` shares, with their last checkpoints."""
    if not (other / "recipe.toml").is_file() or not _computed_alike(other):
        return []
    shared = shared_stage_count(recipe, load_recipe(other / "recipe.toml"))
    ends = []
    for index, stage in recipe.stages_of(TrainingRecipe).items():
        end = other / "checkpoints" / step_name(recipe.first_step(index) + stage.last_step)
        if index >= shared or stage.best is not None or not resumable(end) or damage(end):  # another may be handed on
            break
        ends.append((stage.name, end))
    return ends


def _linked(source: str, target: str) -> None:
    """Links a file, which is safe because files of a checkpoint are replaced and never rewritten; copies otherwise."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
