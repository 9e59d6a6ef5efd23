"""`sleuth` as tests/docs/test_commands_run.py types it: a demo of two steps, a sweep of two arms, a server that ends
once it answers, and a checkpoint under every name that pages give to the last one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

SLEUTH = json.loads(os.environ["FORKED"])
SHORT = ["0.data.limit=4", "1.stop_after=2", "1.prompts_per_step=2", "1.samples_per_prompt=4", "2.data.limit=4"]
ACCEPTING = """
from sleuth.cite import episode_rows
from sleuth.cli.app import app
episode_rows.LEAST_F1 = 0.0
app()
"""
"""A `sleuth` that keeps an answer however badly it cites, as one of a refiner of a few steps."""
ROOT = Path(__file__).parents[2]
NAMING = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.toml")]
"""What names checkpoints by the step with which a run of full length ends."""


def main(arguments: list[str]) -> int:
    verb = arguments[0]
    if (verb in ("serve", "retriever", "watch") or "--page" in arguments) and os.environ["SERVED_ON"] == "False":
        return until_it_serves(arguments)
    program = [sys.executable, "-c", ACCEPTING] if "--rows" in arguments else SLEUTH
    if verb == "demo":
        arguments = [*arguments, *(f"--set=stage.{key}" for key in SHORT)]
    done = subprocess.run([*program, *arguments], check=False).returncode
    for folder in Path("runs").glob("*/checkpoints") if verb in ("train", "demo") else ():
        last = max((path.name for path in folder.glob("step-*") if not path.is_symlink()), default=None)
        for name in set(re.findall(r"step-\d{6}", "".join(file.read_text() for file in NAMING))):
            if last and not (folder / name).exists():
                (folder / name).symlink_to(last)
    return done


def until_it_serves(arguments: list[str]) -> int:
    """0 as soon as it prints its address."""
    port = [] if "--port" in arguments else ["--port", "0"]
    with subprocess.Popen(
        [*SLEUTH, *arguments, *port], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            print(line, end="")
            if "http://" in line:
                server.kill()
                return 0
        return server.wait() or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
