"""The verbs of the command line. Holds no logic, and imports what a verb needs when it runs: help is instant."""

from __future__ import annotations

import sys

from sleuth.host.escapes import escape_terminals
from sleuth.runs.interruption import end_at_signals, ignore_signals, interruption


def main() -> None:
    """The `sleuth` command. Exit status: 0 done, 1 the run failed, 2 the input was wrong, 3 an alarm or a gate
    paused the run, 130 stopped by Ctrl-C, 143 by SIGTERM."""
    end_at_signals()
    escape_terminals()
    try:
        from sleuth.cli.app import app  # here, so that a signal meanwhile is one line

        app(prog_name="sleuth")
    except (Exception, KeyboardInterrupt):  # an import may turn the signal into an error of its own
        if (cause := interruption()) is None:
            raise
        if str(cause):
            print(cause, file=sys.stderr)
        sys.exit(cause.status)
    finally:
        ignore_signals()  # the interpreter ends, and would print a traceback of them
