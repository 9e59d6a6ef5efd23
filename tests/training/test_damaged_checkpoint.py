"""A checkpoint's folder, damaged, swapped, renamed or added to: resuming and loading its model refuse it in a line or
say what they do; none is silent, and none waits for a pipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from verb import sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.checksums import SUMS, write_checksums
from sleuth.learn.models import load_model
from sleuth.plan.model_files import load_files
from sleuth.recipe import load_recipe
from sleuth.runs.chain import CHAIN
from sleuth.runs.manifest import SAVED_AS
from sleuth.runs.push import push
from sleuth.runs.run_folder import RunFolder
from sleuth.training.stage_context import Saved, StageContext, last_saved
from sleuth.types import SleuthError

BRIEF = ("stage.0.data.limit=2", "stage.1.prompts_per_step=2", "stage.1.samples_per_prompt=4")
BRIEF += ("stage.1.env.turn_tokens=12", "stage.2.data.limit=2")
SECONDS = 20
"""Longer than reading a checkpoint of a tiny model takes anywhere, shorter than for ever."""
Damage = Callable[[Path, Path], object]
"""Acts on a checkpoint; the second folder is the same step of a run with another seed."""


@pytest.fixture
def place(finished, tmp_path) -> Path:
    """Step 4, the last checkpoint, of a run of its own without a chain: what a checkpoint says of itself is asked."""
    run = Path(shutil.copytree(finished(*BRIEF).parents[1], tmp_path / "run"))
    (run / CHAIN).unlink()
    return run / "checkpoints" / "step-000004"


@pytest.fixture
def other(finished) -> Path:
    return finished(*BRIEF, "seed=5")


@contextmanager
def waiting_for_nothing() -> Iterator[None]:
    def expired(*_: object) -> None:
        raise TimeoutError(f"waited for {SECONDS} seconds")

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def resume(checkpoint: Path) -> tuple[Saved | None, list[str]]:
    """What the stage of a checkpoint's run would resume from, and the lines that it prints."""
    run, said = checkpoint.parents[1], []
    recipe = load_recipe(run / "recipe.toml")
    with waiting_for_nothing(), RunFolder.open(run, recipe) as folder, folder.saying(said.append):
        return last_saved(StageContext(recipe=recipe, index=1, folder=folder, model=recipe.model)), said


def refused(call: Callable[[], object]) -> str | None:
    """The one line of a refusal."""
    try:
        with waiting_for_nothing():
            call()
    except SleuthError as error:
        (line,) = str(error).splitlines()
        return line
    return None


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.parent.mkdir(exist_ok=True)
        make(file)

    return act


def bind(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # the path of a socket has at most 107 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(file.name)
    finally:
        os.chdir(here)


FILE_DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": cut,
    "one_bit": flip_bit,
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "removed": Path.unlink,
    "pipe": replaced(os.mkfifo),
    "socket": replaced(bind),
    "device": replaced(lambda file: file.symlink_to("/dev/zero")),
    "loop": replaced(lambda file: file.symlink_to(file.name)),
    "dead_link": replaced(lambda file: file.symlink_to("nowhere")),
    "folder": replaced(Path.mkdir),
}
IN_PLACE = ("pipe", "socket", "device", "loop", "dead_link")
FILES = (
    *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "protocol.json", "state/state.pt", str(SAVED_AS), SUMS),
)


def briefly(every: Iterable[object], *quick: object) -> list[Any]:
    """All of them, of which the test suite without its slow tests asks the quick ones."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]


def is_state(name: str) -> bool:
    return name.startswith("state/")


@pytest.mark.parametrize("damage", briefly(FILE_DAMAGES, "one_bit", "pipe"))
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_was_written_is_noticed(place, name, damage):
    FILE_DAMAGES[damage](place / name)
    refusal = refused(partial(load_model, str(place), dtype=None, device="cpu"))
    examined = refused(partial(load_files, str(place)))
    unlisted = (name, damage) == (SUMS, "removed")  # the way to say that a change is meant
    waits = damage in IN_PLACE  # is refused, whatever it is read for
    assert (refusal is None) == (unlisted or (is_state(name) and not waits))
    assert (examined is None) == (unlisted or ((is_state(name) or name == "model.safetensors") and not waits))
    if waits or (damage == "folder" and name != "chat_template.jinja"):
        assert f"{place / name}: " in (refused(partial(resume, place)) or "")
        return
    saved, said = resume(place)
    if unlisted:
        assert said == [f"{place} has no checksums, as those of earlier versions: damage would go unnoticed"]
        return
    assert saved is not None
    assert saved.checkpoint.name == "step-000002"
    assert [
        line for line in said if line.startswith(f"{place} is damaged (") and (Path(name).name in line or name == SUMS)
    ]


def copy_from(names: str) -> Damage:
    def act(place: Path, other: Path) -> None:
        for file in other.glob(names):
            shutil.copy(file, place / file.relative_to(other))

    return act


def swap(place: Path, other: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(other, place)


def keep_lines(keep: Callable[[list[str]], list[str]]) -> Damage:
    return lambda place, _: (place / SUMS).write_text("".join(keep((place / SUMS).read_text().splitlines(True))))


def linked(target: Callable[[Path], Path]) -> Damage:
    def act(place: Path, _: Path) -> None:
        shutil.rmtree(place)
        place.symlink_to(target(place))

    return act


def instead(make: Callable[[Path], object]) -> Damage:
    def act(place: Path, _: Path) -> None:
        shutil.rmtree(place)
        make(place)

    return act


def named(place: Path, **changed: object) -> None:
    """Names another run or step, with a list of checksums that holds."""
    was = json.loads((place / SAVED_AS).read_text())
    (place / SAVED_AS).write_text(json.dumps(was | changed))
    write_checksums(place, but=("README.md",))


WHOLE = {
    "swapped": (swap, r"at step 4 of another run"),
    "linked_to_another_run": (lambda place, other: linked(lambda _: other)(place, other), "at step 4 of another run"),
    "renamed_down": (lambda place, _: place.rename(place.with_name("step-000003")), "at step 4 of this run"),
    "renamed_up": (lambda place, _: place.rename(place.with_name("step-000007")), "at step 4 of this run"),
    "an_earlier_one_renamed": (
        lambda place, _: (shutil.rmtree(place), place.with_name("step-000002").rename(place)),
        "at step 2 of this run",
    ),
    "an_earlier_one_linked": (linked(lambda place: place.with_name("step-000002")), "at step 2 of this run"),
    "an_earlier_one_swapped": (
        lambda place, other: swap(place.with_name("step-000002"), other.with_name("step-000002")),
        "at step 2 of another run",
    ),
    "another_run_named": (lambda place, _: named(place, run="0123"), "of another run"),
    "another_step_named": (lambda place, _: named(place, step=2), "at step 2 of this run"),
    "a_pipe": (instead(os.mkfifo), "is a pipe, not a file"),
    "a_file": (instead(Path.touch), "is a file in place of a checkpoint"),
    "a_link_to_itself": (linked(lambda place: place), "is a link that leads to no file"),
    "list_of_one_line": (keep_lines(lambda lines: lines[:1]), "and 7 more would be loaded"),
    "list_of_its_last_line": (keep_lines(lambda lines: lines[-1:]), "more would be loaded"),
    "list_without_weights": (
        keep_lines(lambda lines: [line for line in lines if "model.safetensors" not in line]),
        "model.safetensors would be loaded, but not as written",
    ),
    "list_without_state": (
        keep_lines(lambda lines: [line for line in lines if "state/" not in line]),
        "state/run.json and 1 more would be loaded",
    ),
    "list_of_another_run": (copy_from(SUMS), None),
    "weights_of_another_run": (copy_from("model.safetensors"), None),
    "state_of_another_run": (copy_from("state/*"), None),
    "empty_list": (keep_lines(lambda lines: []), None),
    "no_state": (lambda place, _: shutil.rmtree(place / "state"), None),
}
"""What is done to a checkpoint, and the line of the refusal; None where the run continues from the one before, with a
line."""


@pytest.mark.parametrize("damage", WHOLE)
def test_a_checkpoint_of_elsewhere_is_not_resumed_from_in_silence(place, other, damage):
    act, line = WHOLE[damage]
    act(place, other)
    before = sorted(path.name for path in place.parent.iterdir())
    if line is not None:
        refusal = refused(partial(resume, place))
        assert refusal is not None
        assert line in refusal
        assert sorted(path.name for path in place.parent.iterdir()) == before, "a refusal changes nothing"
        return
    saved, said = resume(place)
    assert saved is not None
    assert saved.checkpoint.name == "step-000002"
    assert any(str(place) in line and "continuing from step-000002" in line for line in said)


ADDED = (
    *("adapter_config.json", "pytorch_model.bin", "model.safetensors.index.json", "model-00001-of-00002.safetensors"),
    *("adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter", "chat_template.json"),
    *("additional_chat_templates/tool_use.jinja", "added_tokens.json", "special_tokens_map.json", "vocab.json"),
    *("merges.txt", "tokenizer.model", "tokenizer.4.0.0.json", "preprocessor_config.json", "state/more.pt"),
)


@pytest.mark.parametrize("what", briefly(("file", *IN_PLACE), "file"))
@pytest.mark.parametrize("name", ADDED)
def test_a_file_that_was_added_and_would_be_loaded_is_refused(place, name, what):
    (FILE_DAMAGES | {"file": replaced(Path.touch)})[what](place / name)
    for call in (load_model, load_files, push, resume):
        refusal = refused(
            partial(call, str(place), dtype=None, device="cpu")
            if call is load_model
            else partial(push, place, "me/x")
            if call is push
            else partial(call, place if call is resume else str(place))  # type: ignore[operator]
        )
        if what == "file" and (is_state(name) and call is not resume):
            continue
        if what == "file" and (call is load_files and name.endswith("safetensors")):
            continue  # reads no weights
        assert refusal is not None, call
        assert name in refusal


@pytest.mark.parametrize("name", ["README.md", "notes.md", "notes.txt", ".env", ".git/config", "run.log", "state.zip"])
def test_notes_beside_a_checkpoint_are_nobodys_business(place, name):
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("seen")
    load_model(str(place), dtype=None, device="cpu")
    saved, said = resume(place)
    assert saved is not None
    assert (saved.checkpoint, said) == (place, [])


def test_links_to_files_are_files(place, tmp_path):
    """As in the hub's cache, whose snapshots are links to blobs."""
    for number, file in enumerate([path for path in place.rglob("*") if path.is_file()]):
        blob = tmp_path / f"blob-{number}"
        file.rename(blob)
        file.symlink_to(blob)
    load_model(str(place), dtype=None, device="cpu")
    saved, said = resume(place)
    assert saved is not None
    assert (saved.checkpoint, said) == (place, [])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "protocol.json", "tokenizer"])
@pytest.mark.parametrize("make", ["pipe", "socket", "device", "loop"])
def test_a_model_without_checksums_is_not_waited_for_either(place, name, make):
    (place / SUMS).unlink()
    FILE_DAMAGES[make](place / name)
    for call in (load_files, partial(load_model, dtype=None, device="cpu"), ProtocolCard.read):
        refusal = refused(partial(call, place if call == ProtocolCard.read else str(place)))  # type: ignore[operator]
        assert refusal is not None or (call == ProtocolCard.read and name != "protocol.json")
        assert refusal is None or f"{name}: is a" in refusal


@pytest.mark.parametrize(
    ("command", "more"), [("eval", ()), ("serve", ("--port", "0")), ("check", ()), ("export", ()), ("plan", ())]
)
@pytest.mark.parametrize("damage", ["added", "cut_list", "pipe"])
def test_verbs_refuse_such_a_model_in_one_line(place, world, recipe_file, tmp_path, command, more, damage):
    if damage == "added":
        (place / "adapter_config.json").write_text("{}")
    elif damage == "cut_list":
        keep_lines(lambda lines: lines[:1])(place, place)
    else:
        replaced(os.mkfifo)(place / "protocol.json")
    arguments: list[object] = {
        "eval": ["eval", place, "--questions", world / "qa_test.jsonl", "--index", world / "index"],
        "check": ["check", "model", place],
        "plan": ["plan", recipe_file, "--set", f"model={place}"],
        "export": ["export", place, "--gguf", "--out", tmp_path / "model.gguf"],
        "serve": ["serve", place],
    }[command]
    with waiting_for_nothing():
        result = sleuth(*arguments, *more)
    if command == "plan" and damage != "pipe":
        return  # reads no more of it than its shape
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert str(place) in result.stderr


def test_a_run_of_before_is_continued_with_one_line(place):
    manifest = place.parents[1] / "manifest.json"
    contents = json.loads(manifest.read_text())
    del contents["run"]
    manifest.write_text(json.dumps(contents))
    for checkpoint in place.parent.iterdir():
        (checkpoint / SAVED_AS).unlink()
        write_checksums(checkpoint, but=("README.md",))
    result = sleuth("train", place.parents[1] / "recipe.toml", "--run", place.parents[1])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "unnoticed" in line or "noticed from now on" in line]
    assert lines == [
        f"{place.parents[1]} has no chain.jsonl: its files are accepted as they are, and changes noticed from now on"
    ]
    assert json.loads(manifest.read_text())["run"]


def test_a_run_whose_manifest_was_lost_is_the_run_of_its_checkpoints(place):
    manifest = place.parents[1] / "manifest.json"
    run = json.loads(manifest.read_text())["run"]
    manifest.unlink()
    saved, _ = resume(place)
    assert saved is not None
    assert saved.checkpoint == place
    assert json.loads(manifest.read_text())["run"] == run


def test_two_runs_with_the_same_seed_have_the_same_weights_and_other_names(place, recipe_file, run, tmp_path):
    again = run(recipe_file, tmp_path / "again", *BRIEF)
    assert (again / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()
    assert json.loads((again / SAVED_AS).read_text())["step"] == 4
    assert (again / SAVED_AS).read_bytes() != (place / SAVED_AS).read_bytes()


@pytest.mark.parametrize("umask", briefly((0o022, 0o002, 0o077), 0o022))
def test_the_umask_decides_who_reads_what_is_written(run, recipe_file, tmp_path, umask):
    before = os.umask(umask)
    try:
        run(recipe_file, tmp_path / "run", *BRIEF)
    finally:
        os.umask(before)
    modes = {file: file.stat().st_mode & 0o777 for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert set(modes.values()) == {0o666 & ~umask}, {file: oct(mode) for file, mode in modes.items()}
