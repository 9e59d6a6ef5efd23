"""What did not fit into the memory of a rank, noted for the next start of all of them."""

from __future__ import annotations

from pathlib import Path


class Shortages:
    """A folder of empty files: `grpo@4096` says that an update of stage `grpo` did not fit with 4,096 tokens at once.

    The rank that ran out of memory notes it itself: the first one, which writes the run otherwise, waits for it in the
    middle of the update. Several may note the same at the same moment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, stage: str, tokens: int) -> None:
        """An update with so many tokens at once did not fit."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{stage}@{tokens}").touch()

    def fitting(self, stage: str, tokens: int) -> int:
        """So many tokens at once, or half of the fewest that did not fit."""
        noted = [int(place.name.rpartition("@")[2]) for place in self.folder.glob(f"{stage}@*")]
        return min([tokens, *(each // 2 for each in noted)])
