"""An inspect-ai task: questions asked of `sleuth serve`, scored by exact match.

Run it (`pip install inspect-ai openai`) beside `sleuth serve MODEL --index DIR --name tiny`:

    export SERVED_BASE_URL=http://127.0.0.1:8000/v1 SERVED_API_KEY=none
    inspect eval examples/inspect_search.py --model openai-api/served/tiny -T questions=FILE.jsonl

The model searches by itself, so the task has no tools. The file has the rows that `sleuth eval` reads.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.scorer import exact
from inspect_ai.solver import generate


@task
def search(questions: str) -> Task:
    """Each question by itself, greedily."""
    return Task(dataset=json_dataset(questions, sample_of), solver=generate(), scorer=exact())


def sample_of(row: dict) -> Sample:
    """The question of a row."""
    return Sample(id=row["id"], input=row["question"], target=row["golden_answers"])
