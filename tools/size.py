"""Print the size of the source and hold it to its budgets: lines of each room, files, other files, docstrings. A room
above its budget, or without one, ends it with 1.

A budget falls with its room. It rises only with a sentence in the commit that says what was paid for it.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "sleuth"
ROOMS = {
    "__init__.py": 3,
    "__main__.py": 7,
    "answers": 1_826,
    "cite": 3_029,
    "cli": 5_088,
    "convert": 1_116,
    "data": 2_647,
    "dialect.py": 254,
    "engines": 5_677,
    "episodes": 3_473,
    "evaluation": 2_418,
    "family.py": 262,
    "host": 1_690,
    "judges": 1_854,
    "kernels": 2_514,
    "learn": 3_904,
    "own": 1_026,
    "plan": 2_679,
    "ranks.py": 105,
    "read": 2_317,
    "recipe": 3_961,
    "render.py": 396,
    "report": 2_550,
    "retrieval": 2_481,
    "rollout.py": 238,
    "runs": 3_413,
    "search": 2_842,
    "serve": 2_052,
    "terminal": 616,
    "think": 4_613,
    "trainers": 667,
    "training": 3_828,
    "types.py": 686,
    "world": 1_078,
}
"""Lines of Python at most, by folder or module of the package."""
FILES = 366
OTHER_LINES = 2300
"""Lines of files that are written by hand and hold no Python, at most."""
OTHERS = {".css", ".html", ".j2", ".jinja", ".js", ".md", ".toml", ".txt"}
DOCSTRINGS = 0.12
"""Share of lines at least, so that size is not won by leaving words out."""


def main() -> int:
    """Prints the sizes; 1 if one is over its budget."""
    rooms, files, words, others = Counter[str](), Counter[str](), 0, 0
    for file in sorted(PACKAGE.rglob("*")):
        if file.suffix in OTHERS:
            others += len(file.read_text(encoding="utf-8").splitlines())
        if file.suffix == ".py":
            room, text = file.relative_to(PACKAGE).parts[0], file.read_text(encoding="utf-8")
            rooms[room] += len(text.splitlines())
            files[room] += 1
            words += sum(docstring_lines(ast.parse(text)))
    for room, lines in rooms.most_common():
        print(f"{lines:7,} lines of {ROOMS.get(room, 0):6,}  {files[room]:3} files  {room}")
    share = words / rooms.total()
    print(f"{rooms.total():7,} lines of {sum(ROOMS.values()):6,}  {files.total():3} files  in all")
    print(f"{others:7,} lines of other files; {share:.3f} of the lines are docstrings")

    over = [f"{room} has {lines:,} lines" for room, lines in rooms.items() if lines > ROOMS.get(room, 0)]
    over += [f"{room} has a budget and no file" for room in ROOMS.keys() - rooms.keys()]
    over += [f"{files.total()} files, and {FILES} are allowed"] * (files.total() > FILES)
    over += [f"{others:,} lines of other files, and {OTHER_LINES:,} are allowed"] * (others > OTHER_LINES)
    over += [f"{share:.3f} of the lines are docstrings, and should be {DOCSTRINGS}"] * (share < DOCSTRINGS)
    for line in over:
        print(f"error: tools/size.py: {line}", file=sys.stderr)
    return bool(over)


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """The lines of each string that is a statement: of modules, classes and functions, and below names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    sys.exit(main())
