"""Print the size of the source: files and lines of each room, and the totals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "sleuth"


def main() -> None:
    lines, files = Counter[str](), Counter[str]()
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        lines[room] += len(file.read_text(encoding="utf-8").splitlines())
        files[room] += 1
    for room, count in lines.most_common():
        print(f"{count:7,} lines  {files[room]:3} files  {room}")
    print(f"{lines.total():7,} lines  {files.total():3} files  in all")


if __name__ == "__main__":
    main()
