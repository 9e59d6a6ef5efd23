"""The table of the page on other trainers counts the lines that the examples have."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "other_trainers.md"
OWN_CODE = ROOT / "docs" / "how-to" / "own_code.md"


def code_lines(file: Path) -> int:
    """Lines of a file that hold code, docstrings of functions included; without the module's own and comments."""
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [
        one for one in tokenize.generate_tokens(io.StringIO(file.read_text()).readline) if one.type not in ignored
    ]
    start = 1 if tokens[0].type == tokenize.STRING else 0
    return len({line for one in tokens[start:] for line in range(one.start[0], one.end[0] + 1)})


IDEA = "the second idea"
"""A row of the table of that section, whose own test counts the lines of its blocks."""


def test_the_table_counts_the_lines_of_the_examples() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| a ", "| an "))]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    counted = {
        "a reward": ("own_code/my_rewards.py", "other_trainers/trl_reward.py", "other_trainers/verifiers_reward.py"),
        "a tool": ("own_code/my_tools.py", "own_code/my_tools.py", "other_trainers/verifiers_tool.py"),
        "an environment": ("own_code/my_env.py", "other_trainers/trl_env.py", "other_trainers/verifiers_env.py"),
        "a stateful environment, a database": (
            "own_code/my_bank.py",
            "other_trainers/trl_bank.py",
            "other_trainers/verifiers_bank.py",
        ),
        "a loss": ("own_code/my_losses.py", "other_trainers/trl_loss.py", None),
        "a metric": (IDEA, "other_trainers/trl_metric.py", "other_trainers/verifiers_metric.py"),
        "a schedule of the KL weight, by the figures of the run": (IDEA, "other_trainers/trl_schedule.py", None),
        "a batch-wide advantage": (IDEA, "other_trainers/trl_advantage.py", None),
        "a curriculum": (IDEA, "other_trainers/trl_curriculum.py", "other_trainers/verifiers_curriculum.py"),
        "a stream of rows": (IDEA, "other_trainers/trl_stream.py", "other_trainers/verifiers_stream.py"),
        "a training loop": ("own_loop.py", None, None),
        "an agent of the OpenAI Agents SDK": ("own_code/agents_sdk.py", None, "other_trainers/verifiers_program.py"),
    }
    rows_of = {cell[0]: cell[1:] for cell in cells}
    ideas = dict(re.findall(r"^\| (.+?) \| (\d+) \|", OWN_CODE.read_text(), re.MULTILINE))
    for what, files in counted.items():
        for file, cell in zip(files, rows_of[what], strict=True):
            if file == IDEA:
                expected = ideas["the same by the figures of the run" if "figures" in what else what]
            else:
                expected = "none" if file is None else str(code_lines(ROOT / "examples" / file))
            assert cell.split()[0].rstrip(",:") == expected, (what, file)
