"""Whether a run's trained model answers as well as it must: exit status 1 and one line where it does not.

python tools/reached.py runs/demo 0.75 0.5     of one-hop and of two-hop questions, exact match at least so much
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(run: str, one_hop: str, two_hop: str) -> int:
    """The exit status."""
    found = json.loads((Path(run) / "eval" / "trained.json").read_text(encoding="utf-8"))
    asked = {"em_one_hop": float(one_hop), "em_two_hop": float(two_hop)}
    reached = {key: found[key]["value"] for key in asked}
    print(f"{run}: " + ", ".join(f"{key} {value:.3f} (asked {asked[key]:g})" for key, value in reached.items()))
    return int(any(reached[key] < least for key, least in asked.items()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
