"""`python -m benchmarks.bm25_sides OLD_SRC OLD_INDEX NEW_INDEX QUESTIONS...`: single BM25 queries of two versions.

OLD_SRC is the `src` folder of another version of Sleuth, which made OLD_INDEX of the same corpus. Both answer the same
questions, each once, in turns of 100, in processes of their own; times are of the processor, which other load of the
machine hardly changes, and of the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import sleuth
from sleuth.data.questions import load_questions

TURN, WARM_UP, K = 100, 100, 3
SIDE = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sleuth.retrieval.bm25 import Bm25
index = Bm25(Path(sys.argv[2]))
for line in sys.stdin:
    cpu, wall, found = time.process_time(), time.perf_counter(), []
    for question in json.loads(line):
        found.append([passage.id for passage in index.find([question], 3)[0]])
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall, found]), flush=True)
"""


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bm25_sides", description=__doc__)
    parser.add_argument("old_src", type=Path)
    parser.add_argument("old_index", type=Path)
    parser.add_argument("new_index", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    options = parser.parse_args()
    questions = list(dict.fromkeys(task.question for file in options.questions for task in load_questions(file)))
    sides = {
        "old": side(options.old_src, options.old_index),
        "new": side(Path(sleuth.__file__).parent.parent, options.new_index),
    }
    cpu, wall, same = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0), 0
    for start in range(0, len(questions) // TURN * TURN, TURN):
        answers = {name: ask(process, questions[start : start + TURN]) for name, process in sides.items()}
        if start < WARM_UP:
            continue
        for name, (worked, took, _) in answers.items():
            cpu[name] += worked
            wall[name] += took
        same += sum(a == b for a, b in zip(answers["old"][2], answers["new"][2], strict=True))
    count = len(questions) // TURN * TURN - WARM_UP
    for process in sides.values():
        process.kill()
    figures = {
        "questions": count,
        "same_passages": round(same / count, 4),
        "cpu_ms": {name: round(seconds / count * 1000, 3) for name, seconds in cpu.items()},
        "per_second": {name: round(count / seconds, 1) for name, seconds in wall.items()},
        "ratio_by_processor": round(cpu["old"] / cpu["new"], 2),
        "ratio_by_clock": round(wall["old"] / wall["new"], 2),
    }
    print(json.dumps(figures))


def side(source: Path, index: Path) -> subprocess.Popen[str]:
    """A process that answers lists of questions with one version."""
    command = [sys.executable, "-c", SIDE, str(source), str(index)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], questions: list[str]) -> tuple[float, float, list[list[str]]]:
    """(seconds of the processor, seconds of the clock, ids) of a turn."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(questions) + "\n")
    process.stdin.flush()
    return tuple(json.loads(process.stdout.readline()))


if __name__ == "__main__":
    main()
