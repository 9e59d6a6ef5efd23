"""Variables of the environment: keys, and bounds on what files and answers may take of the memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sleuth.types import SleuthError

MB = 10**6
KEY_VARIABLE = "SLEUTH_API_KEY"
"""The key that our servers ask for; it is never sent anywhere."""
CLIENT_KEY_VARIABLE = "SLEUTH_CLIENT_KEY"
"""The key that is sent to the retrievers, engines and servers of tools that a recipe or an option names."""

GRAPHS_VARIABLE = "SLEUTH_CUDA_GRAPHS"
"""0: the engine in the process launches decode steps on a card kernel by kernel, and not as CUDA graphs."""


def cuda_graphs() -> bool:
    """Whether CUDA graphs are not switched off. Raises SleuthError if the variable is neither 0 nor 1."""
    value = os.environ.get(GRAPHS_VARIABLE) or "1"
    if value not in ("0", "1"):
        raise SleuthError(f"{GRAPHS_VARIABLE} = {value!r}: expected 0, for no CUDA graphs, or 1")
    return value == "1"


def key_in(variable: str) -> str | None:
    """The key in a variable of the environment; None if there is none. Raises SleuthError if no header can hold it."""
    key = os.environ.get(variable)
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise SleuthError(f"{variable}: a key is printable ASCII without spaces")
    return key or None


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound in MB; the environment's `variable` overrides the `default`."""

    variable: str
    default: int

    @property
    def megabytes(self) -> int:
        """Raises SleuthError if the variable is not a positive whole number."""
        value = os.environ.get(self.variable, "")
        if not value:
            return self.default
        if not value.isdecimal() or not int(value):
            raise SleuthError(f"{self.variable} = {value!r}: expected a whole number of MB, such as {self.default}")
        return int(value)

    @property
    def bytes(self) -> int:
        """The bound in bytes."""
        return self.megabytes * MB

    def exceeded(self) -> str:
        """`larger than 64 MB; SLEUTH_MAX_ROW_MB in the environment raises this bound`."""
        return f"larger than {self.megabytes} MB; {self.variable} in the environment raises this bound"


ROW = Bound("SLEUTH_MAX_ROW_MB", 64)
"""One line of a file of rows, or one text, after decompression."""
ANSWER = Bound("SLEUTH_MAX_ANSWER_MB", 64)
"""One answer of a retriever, an engine or a judge."""
