"""Which verbs there are, and the exit status and message of each failure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_group

from sleuth import __version__, family
from sleuth.host.escapes import folded
from sleuth.host.threads import prepare_waiting
from sleuth.own.families import use_installed
from sleuth.own.permission import CODE
from sleuth.runs.interruption import Interrupted
from sleuth.types import RetrievalFailed, RunFailed, SleuthError, StoppedByRule, TransientError

FAILED = 1
"""Exit status of a run that failed."""
WRONG_INPUT = 2
"""Exit status where an argument, a file or a recipe is wrong."""
PAUSED = 3
"""Exit status of a run that an alarm or a gate of its recipe ended or paused."""
INTERRUPTED = 130
"""Exit status after Ctrl-C; 143 after SIGTERM."""

LONGEST = 3_000
"""Characters of an error that are printed, which may repeat what a file has; no other follows what is as long."""

FIRST = """Try these first:
  sleuth ask FOLDER "QUESTION"  ask your documents; nothing leaves this machine
  sleuth demo                   a tiny model learns to search, in five minutes
  sleuth recipes                what can be trained, and on which card

sleuth --help lists all commands, sleuth COMMAND --help explains one."""
"""What `sleuth` prints alone."""

EXAMPLES = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines()
"""One of each verb of ours, which its help ends with."""

SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
GROUPS = {"annotate": "Make questions or rubrics, most by a teacher."}
"""What the groups of verbs do that families bring."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""Of the click that typer uses: its own copy, or, in older versions, the one that is installed."""
NoArgsIsHelpError: Any = next((one for one in UsageError.__subclasses__() if one.__name__ == "NoArgsIsHelpError"), ())


def sections() -> dict[str, dict[str, dict[str, str]]]:
    """By section and verb: the `module:name` of the verb, under an empty name, or of each verb of the group."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for section, verbs in family.verbs().items():
        for name, place in verbs.items():
            verb, _, member = name.partition(" ")
            found.setdefault(section, {}).setdefault(verb, {})[member] = place
    return found


def _places(name: str) -> dict[str, str] | None:
    return next((verbs[name] for verbs in sections().values() if name in verbs), None)


class Commands(Mapping[str, Any]):
    """The verbs by name, those of installed families too. A verb's module is imported when the verb is looked up."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        use_installed()
        return (verb for verbs in sections().values() for verb in verbs)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if (places := _places(name)) is None:
                use_installed()
                if (places := _places(name)) is None:
                    raise KeyError(name)
            parent = typer.Typer(**SETTINGS)
            if places.keys() == {""}:
                found = family.load_named(places[""])
                parent.add_typer(found, name=name) if isinstance(found, typer.Typer) else parent.command(name)(found)
            else:
                group = typer.Typer(**SETTINGS, help=GROUPS.get(name, f"Verbs: {', '.join(sorted(places))}."))
                for member in sorted(places):
                    group.command(member)(family.load_named(places[member]))
                parent.add_typer(group, name=name)
            self._known[name] = verb = get_group(parent).commands[name]
            for inner, one in [("", verb), *getattr(verb, "commands", {}).items()]:
                words = f"{name} {inner}".strip() + " "
                one.epilog = next(
                    (f"Example: sleuth {line}" for line in EXAMPLES if f"{line} ".startswith(words)), None
                )
        return self._known[name]


class Verbs(TyperGroup):
    """Turns what a verb raises into one line per problem and an exit status. A traceback means a bug of ours."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Runs the command line. A command line that cannot be parsed is one line too, without click's usage box."""
        if not standalone_mode:
            return super().main(*arguments, standalone_mode=False, **more)
        try:
            status = super().main(*arguments, standalone_mode=False, **more)
        except UsageError as error:
            bare = isinstance(error, NoArgsIsHelpError)
            first = bare and error.ctx.parent is None
            typer.echo(FIRST if first else error.format_message() if bare else _usage_line(error), err=True)
            status = WRONG_INPUT
        except typer.Abort:
            typer.echo("interrupted", err=True)
            status = INTERRUPTED
        sys.exit(status or 0)  # None where the verb returned

    def invoke(self, ctx: Any) -> Any:
        words = list(ctx.args)
        try:
            prepare_waiting()
            with CODE.of_command_line():
                return super().invoke(ctx)
        except (SleuthError, RetrievalFailed) as error:
            status, lines = exit_status(error), [str(problem) for problem in error.args]
            if status != PAUSED:  # where nothing that was typed is wrong
                typed = _options(self.get_command(ctx, ctx.invoked_subcommand), words)
                lines = [f"error: {as_typed(line, typed)}" for line in lines]
            raise _exit_after(status, *lines) from None
        except BrokenPipeError:  # the reader closed the pipe, as `head` does; typer ends quietly
            raise
        except OSError as error:  # a full disk, a folder that may not be written
            raise _exit_after(FAILED, f"error: {error.filename or 'system'}: {error.strerror or error}") from None
        except KeyboardInterrupt as error:
            raise _exit_after_signal(error) from None

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """See typer, which ends without a line when a signal comes here."""
        try:
            return super().make_context(*arguments, **more)
        except KeyboardInterrupt as error:
            raise _exit_after_signal(error) from None


class LazyVerbs(Verbs):
    """The verbs of the families, each imported when it is named."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: Any = Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the verbs by section, in aligned columns."""
        width = max(map(len, self.commands))
        for section, names in sections().items():
            verbs = [(name, self.commands[name]) for name in names]
            limit = formatter.width - width - 4  # two columns of spaces on either side of the name
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), verb.get_short_help_str(limit)) for name, verb in verbs])


def exit_status(error: SleuthError | RetrievalFailed) -> int:
    """3 where a rule of the recipe ended the run, 1 where the run failed, 2 where its input was wrong."""
    if isinstance(error, StoppedByRule):
        return PAUSED
    return FAILED if isinstance(error, RunFailed | TransientError | RetrievalFailed) else WRONG_INPUT


def as_typed(problem: str, options: Mapping[str, str]) -> str:
    """The problem with the option before the value that it begins with: `--index nope: no index here`. What is from a
    recipe begins with its file, and what --set changed with that."""
    for option, value in options.items():
        key = option.removeprefix("--").replace("-", "_")
        for start in (f"{value}: ", f"{Path(value)}: ", f"{key} = {value!r}: ", f"urls: {value} "):
            if problem.startswith(start):
                return f"{option} {value}{':' if start.endswith(': ') else ''} {problem.removeprefix(start)}"
    return problem


def _options(verb: Any, words: Sequence[str]) -> dict[str, str]:
    """The long options of a command line and their values."""
    if verb is None:  # the error came before the verb was known
        return {}
    verb = getattr(verb, "commands", {}).get(words[0], verb) if words else verb
    flags = {name for one in verb.params if getattr(one, "is_flag", False) for name in (*one.opts, *one.secondary_opts)}
    parts = ((*word.partition("="), after) for word, after in zip_longest(words, words[1:], fillvalue=""))
    given = {option: value if equals else after for option, equals, value, after in parts if option not in flags}
    return {option: value for option, value in given.items() if option.startswith("--") and value}


STRUCK = {
    "sleuth eval-suite": "`sleuth eval MODEL --suite FOLDER`",
    "sleuth eval --ask-with": "`sleuth eval` without it: a model is asked as it was trained",
    **{f"sleuth {verb} --cache-memory": "fewer `--slots`" for verb in ("eval", "serve")},
    "sleuth reasoning": '`sleuth train` with a stage of kind = "reason"',
    "sleuth annotate thoughts": '`sleuth train` with a stage of kind = "annotate"',
    "sleuth train --push": '`hf upload OWNER/NAME CHECKPOINT --private --exclude "state/*"`',
    "sleuth certify --ratings": "`--judge FILE` where exact match is too strict",
    "sleuth init --corpus": "`--corpus FILE --questions FILE`, or run `sleuth demo`",
    "sleuth init --task": "`sleuth recipes NAME > mine.toml`, such as refiner_0.6b_single_gpu or thinking_0.6b",
    "sleuth index --add": "`sleuth index CORPUS DIR` with the whole corpus; of a folder it reads what changed",
    "sleuth index --remove": "`sleuth index CORPUS DIR` with the corpus that is left",
    **{f"sleuth {verb} --per-client": "a proxy that limits clients" for verb in ("serve", "retriever", "watch")},
    "sleuth merge --max-shard-size": "`sleuth merge` without it: files have 2 GB at most",
    "sleuth get --from": "`sleuth index CORPUS DIR`",
    "sleuth get --encoder": "`sleuth index CORPUS DIR --kind dense --encoder MODEL`",
    "sleuth get --plan": "the table of docs/how-to/retrieval.md",
    "sleuth get --questions": "`sleuth search DIR --questions FILE`",
}
"""Former verbs and options, and those that became required, and what to write."""


def _usage_line(error: Any) -> str:
    """`error: sleuth eval: --limit: should be a valid integer; see sleuth eval -h`."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if error.ctx is None:
        return f"error: {message}"
    command = re.sub("^[^ ]+", "sleuth", error.ctx.command_path)
    message = re.sub("^Invalid value for '([^']*)'", r"\1", message)
    message = message.replace(": Input ", ": ").replace("Value error, ", "").partition(", unable to parse")[0]
    absent = re.match("(?:No such (?:command|option):?|Missing option) '?([^' ]+)'?", message)
    if absent and (instead := STRUCK.get(f"{command} {absent[1]}")):  # without the options of similar names
        return f"error: {command}: {absent[0][:1].lower()}{absent[0][1:]}; use {instead}"
    message = message.replace("Got unexpected", "words of one argument need quotes; got unexpected")
    return f"error: {command}: {message[:1].lower()}{message[1:]}; see {command} {error.ctx.help_option_names[0]}"


def _exit_after(status: int, *lines: str) -> typer.Exit:
    """Prints the lines on stderr; the exception that ends the process with `status`."""
    room = LONGEST
    for number, line in enumerate(lines):
        if room <= 0:
            typer.echo(f"error: and {len(lines) - number:,} more", err=True)
            break
        shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... ({len(line):,} characters)"
        typer.echo(folded(shown.replace("\n", " "), sys.stderr), err=True)
        room -= len(shown)
    return typer.Exit(status)


def _exit_after_signal(error: KeyboardInterrupt) -> typer.Exit:
    """The same for Ctrl-C and SIGTERM."""
    if isinstance(error, Interrupted):
        return _exit_after(error.status, *filter(None, [str(error)]))
    return _exit_after(INTERRUPTED, "interrupted")


WHOLE: dict[str, Any] = SETTINGS | {"add_completion": True}
app = typer.Typer(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]}, **WHOLE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sleuth {__version__}")
        raise typer.Exit


@app.callback()
def _sleuth(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train small language models to search, think and cite."""
