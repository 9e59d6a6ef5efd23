"""Whether a run's trained model answers as well as it must: exit status 1 where it does not, 2 where that cannot be
told; one line in each case.

python tools/reached.py runs/demo 0.75 0.5     of one-hop and of two-hop questions, exact match at least so much
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sleuth.types import SleuthError

KEYS = ("em_one_hop", "em_two_hop")


def measured(run: Path) -> dict[str, float]:
    """Exact match by key. Raises SleuthError."""
    file = run / "eval" / "trained.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: float(found[key]["value"]) for key in KEYS}
    except OSError as error:
        raise SleuthError(
            f"{file}: {error.strerror}; a run writes it at its end, when it evaluates what it trained"
        ) from None
    except ValueError as error:
        raise SleuthError(f"{file}: not the JSON of an evaluation ({error}); evaluate the run again") from None
    except (KeyError, TypeError):
        raise SleuthError(
            f"{file}: should hold figures of {' and of '.join(KEYS)}; evaluate on questions of both kinds"
        ) from None


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    for key in KEYS:
        parser.add_argument(key, type=float)
    asked = vars(parser.parse_args(arguments))
    try:
        reached = measured(asked["run"])
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{asked['run']}: " + ", ".join(f"{key} {reached[key]:.3f} (asked {asked[key]:g})" for key in KEYS))
    return int(not all(reached[key] >= asked[key] for key in KEYS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
