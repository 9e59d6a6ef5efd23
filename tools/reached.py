"""Whether a run's trained model answers as well as it must: exit status 1 where it does not, 2 where that cannot be
told; one line in each case.

python tools/reached.py runs/demo em_one_hop=0.75 em_two_hop=0.5     each of these figures is at least so much
python tools/reached.py runs/gain --of thoughts_after right_sampled=0.85     those of another evaluation than `trained`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sleuth.types import SleuthError


def measured(run: Path, evaluation: str, keys: Sequence[str]) -> dict[str, float]:
    """The figures of an evaluation by key. Raises SleuthError."""
    file = run / "eval" / f"{evaluation}.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: float(found[key]["value"]) for key in keys}
    except OSError as error:
        raise SleuthError(
            f"{file}: {error.strerror}; a run writes it at its end, when it evaluates what it trained"
        ) from None
    except ValueError as error:
        raise SleuthError(f"{file}: not the JSON of an evaluation ({error}); evaluate the run again") from None
    except (KeyError, TypeError):
        raise SleuthError(
            f"{file}: should hold figures of {' and of '.join(keys)}; evaluate on questions that have them"
        ) from None


def bar(text: str) -> tuple[str, float]:
    """`em_one_hop=0.75`."""
    key, equals, least = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=NUMBER, such as em_one_hop=0.75")
    return key, float(least)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("bars", metavar="KEY=NUMBER", nargs="+", type=bar)
    parser.add_argument("--of", metavar="EVALUATION", default="trained")
    asked = parser.parse_args(arguments)
    bars = dict(asked.bars)
    try:
        reached = measured(asked.run, asked.of, [*bars])
    except SleuthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{asked.run}: " + ", ".join(f"{key} {reached[key]:.3f} (asked {bars[key]:g})" for key in bars))
    return int(not all(reached[key] >= bars[key] for key in bars))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
