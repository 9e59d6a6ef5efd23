"""Sums for a calculator. `python examples/own_code/sums_world.py` writes texts to learn from, and questions.

Numbers have two digits, and so have results. Every fourth number is held out: it stands in rows that copy a sum, and in
no question of training. In the texts, one question in seven is answered by a call, the others by a guess.
"""

import json
import random
from pathlib import Path

FOLDER = Path("runs/sums")
NUMBERS = range(10, 100)
HELD_OUT = frozenset(NUMBERS[::4])
DOCUMENTS, ITEMS = 6_000, 10
COPIES, CALLS = 0.4, 0.15
"""Of the items of a text the share that copies a sum; of the others the share that calls the calculator."""


def sums_of(held_out: bool) -> list[tuple[str, int]]:
    """All sums and differences of two numbers that are held out, or of two that are not, with their results."""
    numbers = [number for number in NUMBERS if (number in HELD_OUT) == held_out]
    results = [(f"{a}{sign}{b}", a + b if sign == "+" else a - b) for a in numbers for b in numbers for sign in "+-"]
    return [(expression, result) for expression, result in results if result in NUMBERS]


def item(rng: random.Random, asked: list[tuple[str, int]]) -> str:
    """A copied sum, a question with a call, or a question with a guess."""
    if rng.random() < COPIES:
        expression = rng.choice("+-").join(str(rng.choice(NUMBERS)) for _ in range(2))
        return f"Copy:\n{expression}\n{expression}\n"
    expression, result = rng.choice(asked)
    if rng.random() < CALLS:
        call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
        made = f"<tool_call>{call}</tool_call>\n<tool_response>{result}</tool_response>\n"
    else:
        made, result = "", rng.choice(NUMBERS)
    return f"Question:\n{expression}?\n{made}<answer>{result}</answer>\n"


def main() -> None:
    """Writes the texts and both files of questions."""
    rng = random.Random(0)
    asked = sums_of(held_out=False)
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = ({"text": "".join(item(rng, asked) for _ in range(ITEMS))} for _ in range(DOCUMENTS))
    (FOLDER / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    for name, sums in (("train", asked), ("test", sums_of(held_out=True))):
        rows = [
            {"id": f"{name}-{at}", "question": f"{expression}?", "golden_answers": [str(result)]}
            for at, (expression, result) in enumerate(rng.sample(sums, len(sums)))
        ]
        (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
