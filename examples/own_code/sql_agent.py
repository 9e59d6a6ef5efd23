"""An agent that asks a SQLite file. `python examples/own_code/sql_agent.py` writes the file and questions about it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

FOLDER = Path("runs/countries")
DATABASE, QUESTIONS = FOLDER / "countries.db", FOLDER / "questions.jsonl"
MOST_ROWS = 10
COUNTRIES = [
    ("Austria", "Vienna", "Europe", 83_879),
    ("Bolivia", "Sucre", "South America", 1_098_581),
    ("Denmark", "Copenhagen", "Europe", 42_943),
    ("Ghana", "Accra", "Africa", 238_533),
    ("Hungary", "Budapest", "Europe", 93_028),
    ("Kenya", "Nairobi", "Africa", 580_367),
    ("Laos", "Vientiane", "Asia", 236_800),
    ("Morocco", "Rabat", "Africa", 446_550),
    ("Nepal", "Kathmandu", "Asia", 147_516),
    ("Peru", "Lima", "South America", 1_285_216),
    ("Portugal", "Lisbon", "Europe", 92_230),
    ("Vietnam", "Hanoi", "Asia", 331_212),
]
"""Name, capital, continent, area in square kilometres."""


def sql(query: str) -> list[list[object]]:
    """Runs one SELECT on the table countries(name, capital, continent, area).

    Args:
        query: A statement in SQLite's dialect, such as "SELECT capital FROM countries WHERE name = 'Peru'".
    """
    with closing(sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True)) as connection:
        return [list(row) for row in connection.execute(query).fetchmany(MOST_ROWS)]


def write() -> None:
    """Writes the database, and a question about the capital and one about the area of each country."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    DATABASE.unlink(missing_ok=True)
    with closing(sqlite3.connect(DATABASE)) as connection, connection:
        connection.execute("CREATE TABLE countries (name TEXT, capital TEXT, continent TEXT, area INTEGER)")
        connection.executemany("INSERT INTO countries VALUES (?, ?, ?, ?)", COUNTRIES)
    rows = []
    for at, (name, capital, _, area) in enumerate(COUNTRIES):
        rows.append({"id": f"capital-{at}", "question": f"What is the capital of {name}?", "golden_answers": [capital]})
        rows.append({"id": f"area-{at}", "question": f"How large is {name}, in km²?", "golden_answers": [str(area)]})
    QUESTIONS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write()
