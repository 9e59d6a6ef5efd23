"""Commands that a recipe names: how they are started, and an agent that is a program, started for each episode."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from sleuth.host.escapes import one_line
from sleuth.host.variables import CLIENT_KEY_VARIABLE, KEY_VARIABLE
from sleuth.own.functions import UserCodeError, error_line, file_hash, shown
from sleuth.own.permission import CODE
from sleuth.types import Task

TAIL = 2**16
"""Bytes of what a command printed that are read, from the end."""
LARGEST_OUTPUT = 64 * 2**20
"""Bytes that a command may print to stdout, and as many to stderr, before it is ended."""
TRACED = re.compile(r'File "(.+)", line (\d+)')
"""Where a traceback says that a line was."""


def command_words(command: str) -> list[str]:
    """The words of a command, with the Python of this process for `python`."""
    words = shlex.split(command)
    return [sys.executable, *words[1:]] if words[:1] in (["python"], ["python3"]) else words


def command_environment() -> dict[str, str]:
    """The environment of this process without our own keys."""
    return {name: value for name, value in os.environ.items() if name not in (KEY_VARIABLE, CLIENT_KEY_VARIABLE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """A program that plays an episode, in place of a function. `sources` has the sha256 of the files that
    its words name, and of those that it reads.

    It gets the task as JSON on stdin, and the endpoint in OPENAI_BASE_URL and OPENAI_API_KEY. The last line that it
    prints is `{"score": 0.5}` or `{"answer": "42"}`. All processes of its group are killed when it has ended.
    """

    name: str
    sources: Mapping[str, str]

    def error(self, message: str) -> UserCodeError:
        """An error of the command."""
        return UserCodeError(f"{self.name}: {message}")

    def raised(self, error: BaseException) -> UserCodeError:
        """An error that starting it raised."""
        return self.error(error_line(error))

    async def call(self, task: Task, base_url: str, api_key: str) -> Any:
        """The score or the answer. Raises UserCodeError if the program fails, with the last line of its stderr, or does
        not print one: its exit status is no score, since a crash has one too."""
        row = {"id": task.id, "question": task.question, "prompt": task.prompt}
        row |= {"golden_answers": task.golden_answers, "info": dict(task.info)}
        endpoint = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
        with TemporaryFile() as given, TemporaryFile() as printed, TemporaryFile() as errors:  # a pipe may be inherited
            given.write(json.dumps(row).encode())
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command_words(self.name),
                stdin=given,
                stdout=printed,
                stderr=errors,
                env=command_environment() | endpoint,
                start_new_session=True,
            )
            try:
                while True:  # its output is in files, whose size is looked at once a second
                    with suppress(TimeoutError):
                        status = await asyncio.wait_for(process.wait(), 1)
                        break
                    if any(os.fstat(file.fileno()).st_size > LARGEST_OUTPUT for file in (printed, errors)):
                        raise self.error(f"printed more than {LARGEST_OUTPUT // 2**20} MB")
            finally:
                with suppress(ProcessLookupError, PermissionError):  # nobody is left: Linux, and macOS
                    os.killpg(process.pid, signal.SIGKILL)
            if status:
                raise self.error(f"ended with status {status}{self._reason(_tail(errors))}")
            last = _last_line(_tail(printed))
        with suppress(ValueError):
            match json.loads(last):
                case {"score": float() | int() as score, **others} if not others:
                    return score
                case {"answer": str(answer), **others} if not others:
                    return answer
        printed_last = f"{last[:60]!r} as its last line" if last else "nothing"
        raise self.error(f'printed {printed_last}; expected {{"score": 0.5}} or {{"answer": "..."}}')

    def _reason(self, text: str) -> str:
        """The last line of stderr, after the last line of its own files that a traceback names."""
        own = {os.path.abspath(file) for file in self.sources}
        named = [f" {shown(Path(file))}:{line}:" for file, line in TRACED.findall(text) if os.path.abspath(file) in own]
        return f":{''.join(named[-1:])} {one_line(_last_line(text))[:300]}" if text.strip() else ""


def load_command(command: str, files: Sequence[Path] = ()) -> AgentCommand:
    """The program that a command starts, which reads these `files`. Raises UserCodeError if it is not there, or a file
    is not; CodeRefusedError if it may not run here."""
    try:
        words = command_words(command)
    except ValueError as error:
        raise UserCodeError(f"{command!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise UserCodeError(f"{command!r}: there is no program {words[0] if words else ''!r}")
    if absent := next((word for word in words if word.endswith(".py") and not Path(word).is_file()), None):
        raise UserCodeError(f"{command!r}: {absent}: no such file")
    CODE.announce(f"starts {command} for each episode")
    named = [Path(word) for word in words[1:] if Path(word).is_file()]
    return AgentCommand(name=command, sources={str(file): file_hash(file) for file in (*named, *files)})


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
    return file.read().decode(errors="replace")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
