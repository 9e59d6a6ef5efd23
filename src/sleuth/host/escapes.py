"""What a terminal shows: of text that others wrote, control characters and bidi marks as escapes, such as `\\x1b`, and
long lines folded between words."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import Any, TextIO

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # Cc and marks of direction
    r"|\r(?!\n)"  # before a line feed it does nothing; elsewhere it overwrites the line
)


def escape(text: str) -> str:
    """The text with `\\x1b` or `\\u202e` for each character that a terminal would obey; line feeds and tabs stay."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """The text in one line: as an escape, each character that is no visible one or a space."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def replace_surrogates(value: Any) -> Any:
    """The text with a question mark for each unpaired surrogate, which no file and no request can hold; what is no
    text stays as it is."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


class EscapingStream:
    """A terminal to which `print` and its like write: each text is escaped. Our `Console`, whose colours are sequences
    too, escapes what it is given and writes to `terminal` itself.

    `buffer` is hidden: click would write to it, past this, where the encoding is ASCII.
    """

    buffer = None

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.terminal = getattr(stream, "terminal", stream)

    def write(self, text: str) -> int:
        self._stream.write(escape(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_terminals() -> None:
    """Puts an `EscapingStream` around stdout and around stderr, each where it is a terminal; pipes and files get every
    byte as it is. Called again where something else, as a progress bar, has taken the stream's place."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, EscapingStream) and stream.isatty():
            if hasattr(stream, "reconfigure"):  # what the terminal's encoding lacks is an escape too, not a traceback
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, EscapingStream(stream))


def folded(line: str, out: TextIO | None = None) -> str:
    """The line as it is or, in a terminal, between words; a command in `backticks` stays whole, to be copied."""
    if not (out or sys.stdout).isatty():
        return line
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), line)
    width = shutil.get_terminal_size().columns
    return textwrap.fill(whole, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
