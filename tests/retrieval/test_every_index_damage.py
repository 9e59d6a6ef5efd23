"""Every file of an index, damaged in five ways: refused in one line, or without effect; never other results in silence,
and never a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from verb import sleuth

from sleuth.host.checksums import SUMS
from sleuth.retrieval import index_card
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.encoder import encoder_card
from sleuth.retrieval.index_card import FILE_NAME, read_card, require_card
from sleuth.retrieval.open_index import open_index
from sleuth.types import Passage, SleuthError

COUNT = 400
WORDS = ("Tarn", "Velde", "novel", "lake", "miller", "harbor", "letters", "painter", "railway", "opera")
QUERIES = [f"{one} {other}" for one in WORDS for other in WORDS]
FEWEST_FILES = {"bm25": 10, "ivf": 5, "hybrid": 15}


def contents(seed: int) -> dict[str, str]:
    rng = random.Random(seed)
    return {str(row): f'"{rng.choice(WORDS)}"\n{" ".join(rng.choices(WORDS, k=12))} {row}' for row in range(COUNT)}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], list[Path]]:
    """Two indexes of a kind: one to damage, and one of another corpus whose files replace its own."""
    place = tmp_path_factory.mktemp("indexes")
    built: dict[str, list[Path]] = {}

    def build(kind: str, corpus: Path, folder: Path) -> None:
        if kind == "bm25":
            build_index(corpus, folder)
            return
        from sleuth.retrieval.dense import build_dense
        from sleuth.retrieval.hybrid import build_hybrid

        card = encoder_card(str(request.getfixturevalue("encoder_folder")))
        if kind == "hybrid":
            build_hybrid(corpus, folder, card)
        else:
            build_dense(corpus, folder, card, "ivf-sq8")

    def of(kind: str) -> list[Path]:
        if kind not in built:
            built[kind] = [place / f"{kind}-{seed}" for seed in (0, 1)]
            for seed, folder in enumerate(built[kind]):
                corpus = place / f"corpus-{seed}.jsonl"
                rows = ({"id": id_, "contents": text} for id_, text in contents(seed).items())
                corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
                build(kind, corpus, folder)
        return built[kind]

    return of


def flipped(file: Path, other: Path) -> None:
    data, rng = bytearray(file.read_bytes()), random.Random(0)
    for at in rng.sample(range(len(data)), min(64, len(data))):
        data[at] ^= rng.randrange(1, 256)
    file.write_bytes(data)


def replaced(file: Path, other: Path) -> None:
    """By the file of the same name of the other index, or by any of its files."""
    shutil.copy(other if other.is_file() else next(path for path in sorted(other.parent.iterdir())), file)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda file, other: file.unlink(),
    "empty": lambda file, other: file.write_bytes(b""),
    "cut": lambda file, other: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": flipped,
    "replaced": replaced,
}


def found_in(folder: Path) -> Sequence[Sequence[Passage]]:
    return asyncio.run(open_index(folder).search(QUERIES, 5))


def found_or_refused(folder: Path) -> tuple[Sequence[Sequence[Passage]] | None, str]:
    """The results, or None and the line of the refusal."""
    try:
        return found_in(folder), ""
    except SleuthError as error:
        return None, str(error)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", FEWEST_FILES)
def test_a_damaged_file_of_an_index_is_refused_in_one_line_or_changes_nothing(
    indexes: Callable[[str], list[Path]], tmp_path: Path, kind: str, damage: str
) -> None:
    whole, other = indexes(kind)
    expected = found_in(whole)
    assert expected != found_in(other)
    names = [path.relative_to(whole).as_posix() for path in sorted(whole.rglob("*")) if path.is_file()]
    assert {FILE_NAME, SUMS} < set(names)
    assert len(names) >= FEWEST_FILES[kind], names
    without_effect = []
    for at, name in enumerate(names):
        folder = Path(shutil.copytree(whole, tmp_path / str(at)))
        DAMAGES[damage](folder / name, other / name)
        found, line = found_or_refused(folder)
        if found is None:
            assert str(folder) in line, (name, line)
            assert "\n" not in line, (name, line)
            assert any(words in line for words in ("make one with", "remove that file")), (name, line)
        else:
            assert found == expected, name
            without_effect.append(name)
    allowed = {SUMS} if damage == "missing" else set()
    assert {name for name in without_effect if not name.endswith(".lock")} <= allowed


def test_of_a_large_index_sizes_are_compared_at_opening_and_everything_by_check_index(
    indexes: Callable[[str], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(indexes("bm25")[0], tmp_path / "index"))
    sizes = read_card(folder).files
    assert sizes is not None
    largest = max(sizes, key=lambda name: sizes[name])
    monkeypatch.setattr(index_card, "HASHED_AT_OPENING", sum(sizes.values()) - 1)
    whole = (folder / largest).read_bytes()
    flipped(folder / largest, folder)
    require_card(folder, "bm25", read_card(folder).layout)  # not read, and of the right size
    refused = sleuth("check", "index", folder)
    assert (refused.exit_code, f"{largest} is not what was written" in refused.stderr) == (2, True)
    (folder / largest).write_bytes(whole[:-1])
    with pytest.raises(SleuthError, match="bytes, and had"):
        open_index(folder)
    (folder / largest).write_bytes(whole)
    found = sleuth("check", "index", folder, "--json")
    assert json.loads(found.stdout)["intact"] is True


def test_an_index_of_an_earlier_version_opens_and_a_lost_posting_file_is_one_line(
    indexes: Callable[[str], list[Path]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(indexes("bm25")[0], tmp_path / "index"))
    (folder / SUMS).unlink()
    card = json.loads((folder / FILE_NAME).read_text())
    del card["files"]
    (folder / FILE_NAME).write_text(json.dumps(card))
    assert found_in(folder) == found_in(indexes("bm25")[0])
    assert "has no checksums: build it again" in sleuth("check", "index", folder).stdout
    next(path for path in folder.iterdir() if path.suffix == ".idx").unlink()
    with pytest.raises(SleuthError, match="damaged index"):
        open_index(folder)


def largest(folder: Path) -> Path:
    sizes = read_card(folder).files
    assert sizes is not None
    return folder / max(sizes, key=lambda name: sizes[name])


def piped(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def linked(file: Path, target: Path | str) -> None:
    file.unlink()
    file.symlink_to(target)


def one_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def on_card(folder: Path, **fields: object) -> None:
    card = json.loads((folder / FILE_NAME).read_text()) | fields
    (folder / FILE_NAME).write_text(json.dumps(card))


def all_but_the_card(folder: Path, other: Path) -> None:
    card = (folder / FILE_NAME).read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    (folder / FILE_NAME).write_bytes(card)


HOSTILE: dict[str, Callable[[Path, Path], object]] = {
    "a card that is a FIFO": lambda folder, other: piped(folder / FILE_NAME),
    "a card that links to itself": lambda folder, other: linked(folder / FILE_NAME, folder / FILE_NAME),
    "a card of nothing but brackets": lambda folder, other: (folder / FILE_NAME).write_text("[" * 10**6),
    "a card with a text for a number": lambda folder, other: on_card(folder, count="many", files=[1]),
    "a card without sizes": lambda folder, other: on_card(folder, files=None),
    "all of another index but the card": all_but_the_card,
    "checksums that are a FIFO": lambda folder, other: piped(folder / SUMS),
    "checksums cut to a line": lambda folder, other: (folder / SUMS).write_text(
        (folder / SUMS).read_text().splitlines()[0] + "\n"
    ),
    "one bit of the largest file": lambda folder, other: one_bit(largest(folder)),
    "the largest file a link to a device": lambda folder, other: linked(largest(folder), "/dev/zero"),
    "a FIFO more": lambda folder, other: piped(folder / "more"),
}
"""Each is asked of three kinds of index. What a full disk or a copy does is in `DAMAGES`."""


@pytest.mark.parametrize("damage", HOSTILE)
@pytest.mark.parametrize("kind", FEWEST_FILES)
def test_what_was_put_in_place_of_a_file_is_refused_in_one_line_and_not_waited_for(
    indexes: Callable[[str], list[Path]], tmp_path: Path, kind: str, damage: str
) -> None:
    whole, other = indexes(kind)
    folder = Path(shutil.copytree(whole, tmp_path / "index"))
    HOSTILE[damage](folder, other)
    signal.alarm(30)  # a FIFO would be waited for
    try:
        found, line = found_or_refused(folder)
    finally:
        signal.alarm(0)
    assert found is None
    assert str(folder) in line
    assert "\n" not in line
    assert len(line) < 1000
