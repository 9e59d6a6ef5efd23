"""A published system: which runs reproduce it, and the table that its description gives."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt

from sleuth.recipe.draft import Draft, read_toml
from sleuth.recipe.problems import read_table
from sleuth.recipe.shipped import SUFFIX, shipped
from sleuth.recipe.strict import Name, Row, StrictModel, combination
from sleuth.types import SleuthError

FOLDER = "published"
STEPS = "metrics"
"""In the place of an evaluation: the highest mean of a figure over consecutive steps."""


PLACE = r"^[^/:]+(/[^/:]+){1,2}:[^:]+$"
"""Of a figure: RUN/STAGE:FIGURE, or RUN/ARM/STAGE:FIGURE."""


class PublishedRun(StrictModel):
    """A run of the system: a recipe or a sweep, and its twin for two cores."""

    name: Name
    """Its name in the table, and of its folder."""
    recipe: str
    """The recipe or sweep, by its name."""
    twin: str = ""
    """The recipe or sweep that `--tiny` takes; a run without one is left out there."""
    twin_set: Row[str] = ()
    """What is changed in the twin, as `--set` takes it."""
    optional: bool = False
    """Trained only where `--arm` names it."""


class PublishedRow(StrictModel):
    """A line of the table."""

    about: str
    """What was measured, of which model."""
    figure: Annotated[str, Field(pattern=PLACE)]
    """RUN/STAGE:FIGURE, or RUN/ARM/STAGE:FIGURE of a sweep: `slime/base@nq:em` is in `eval/base@nq.json`. The stage
    "metrics" is the highest mean over 20 consecutive steps."""
    twin: Annotated[str, Field(pattern=PLACE)] | None = None
    """The figure of the twin, where it has another name."""
    published: float | None = None
    """The published value; absent where the description gives none."""
    of: NonNegativeInt = 0
    """Of so many questions, where it is a share; its interval follows from them."""

    def place(self, *, tiny: bool) -> tuple[tuple[str, ...], str]:
        """The parts of the path of its evaluation, and the figure in it: (("slime", "base@nq"), "em")."""
        path, _, key = ((self.twin if tiny else None) or self.figure).partition(":")
        return tuple(path.split("/")), key


class PublishedSystem(StrictModel):
    """The root table of a file such as `published/search-r1-slime.toml`."""

    title: str
    """What it is, with its base model."""
    source: str
    """Where its description stands."""
    note: str = ""
    """What a reader of the table should know."""
    run: Annotated[Row[PublishedRun], Field(min_length=1)]
    """Its runs, in the order in which they are trained."""
    row: Annotated[Row[PublishedRow], Field(min_length=1)]
    """The lines of its table."""

    @combination
    def _rows_are_of_runs(self) -> Iterator[str]:
        names = [run.name for run in self.run]
        twins = [run.name for run in self.run if run.twin]
        for at, row in enumerate(self.row):
            if row.place(tiny=False)[0][0] not in names:
                yield f"row.{at}.figure is of no run; there are {', '.join(names)}"
            if row.of and not 0 <= (row.published or 0.0) <= 1:
                yield f"row.{at}.of is for a share, and published = {row.published} is none; leave one of them out"
            if row.twin and row.place(tiny=True)[0][0] not in twins:
                yield f"row.{at}.twin is of no run with a twin; there are {', '.join(twins)}"


def system_names() -> list[str]:
    """The names of the published systems that ship."""
    return sorted(file.stem for file in shipped(FOLDER).glob(f"*{SUFFIX}"))


def read_system(name: str) -> PublishedSystem:
    """The system of a name, or of a file of the same form. Raises SleuthError with the names if there is none."""
    path = Path(name) if name.endswith(SUFFIX) else shipped(f"{FOLDER}/{name}{SUFFIX}")
    if not path.is_file():
        near = difflib.get_close_matches(name, system_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SleuthError(f"{name}: no such published system; {hint}there are {', '.join(system_names())}")
    draft = Draft(str(path))
    draft.merge(read_toml(path), str(path))
    return read_table(draft, PublishedSystem)
