"""Checks that figures of a run's evaluation reach their minimum: exit status 0 if they do, 1 if not, 2 if unknown.

python tools/reached.py runs/demo em_one_hop=0.75 em_two_hop=0.5     of the evaluation `trained`
python tools/reached.py runs/gain --of thoughts_after right_sampled=0.85     of another evaluation
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sleuth.types import SleuthError


def measured(run: Path, evaluation: str, keys: Sequence[str]) -> dict[str, float]:
    """The figures of an evaluation by key. Raises SleuthError if its file is missing, damaged or lacks one."""
    file = run / "eval" / f"{evaluation}.json"
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
        return {key: float(contents[key]["value"]) for key in keys}
    except OSError as error:
        raise SleuthError(
            f"{file}: {error.strerror}; a run writes it at its end, when it evaluates the trained model"
        ) from None
    except ValueError as error:
        raise SleuthError(f"{file}: not the JSON of an evaluation ({error}); evaluate the run again") from None
    except (KeyError, TypeError):
        raise SleuthError(
            f"{file}: should hold figures of {' and of '.join(keys)}; evaluate on questions that have them"
        ) from None


def minimum(text: str) -> tuple[str, float]:
    """`em_one_hop=0.75`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=NUMBER, such as em_one_hop=0.75")
    return key, float(value)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("minima", metavar="KEY=NUMBER", nargs="+", type=minimum)
    parser.add_argument("--of", metavar="EVALUATION", default="trained")
    options = parser.parse_args(arguments)
    minima = dict(options.minima)
    try:
        figures = measured(options.run, options.of, [*minima])
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.run}: " + ", ".join(f"{key} {figures[key]:.3f} (minimum {minima[key]:g})" for key in minima))
    return int(not all(figures[key] >= minima[key] for key in minima))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
