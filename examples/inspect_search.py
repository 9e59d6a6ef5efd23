"""An inspect-ai task: questions asked of `sleuth serve`, scored by exact match and by what the answers cite.

Run it (`pip install inspect-ai openai`) beside `sleuth serve MODEL --index DIR --name tiny`:

    export SERVED_BASE_URL=http://127.0.0.1:8000/v1 SERVED_API_KEY=none
    inspect eval examples/inspect_search.py --model openai-api/served/tiny -M responses_api=true -T questions=FILE.jsonl

The model searches by itself, so the task has no tools. The file has the rows that `sleuth eval` reads.
"""

from urllib.parse import quote

from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.model import ContentText
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, exact, scorer, stderr
from inspect_ai.solver import TaskState, generate


@task
def search(questions: str) -> Task:
    """Each question by itself, greedily."""
    return Task(dataset=json_dataset(questions, sample_of), solver=generate(), scorer=[exact(), cites_gold()])


def sample_of(row: dict) -> Sample:
    """The question of a row."""
    metadata = {"gold_ids": row.get("gold_ids", [])}
    return Sample(id=row["id"], input=row["question"], target=row["golden_answers"], metadata=metadata)


@scorer(metrics=[accuracy(), stderr()])
def cites_gold() -> Scorer:
    """Whether the answer cites one of the passages that hold the facts, the row's `gold_ids`."""

    async def score(state: TaskState, target: Target) -> Score:
        cited = cited_addresses(state)
        gold = {address_of(passage) for passage in state.metadata["gold_ids"]}
        return Score(value=CORRECT if gold & set(cited) else INCORRECT, answer=", ".join(cited))

    return score


def address_of(passage: str) -> str:
    """The address under which `sleuth serve` cites a passage: its id if that is one, else `passage:ID`."""
    return passage if passage.startswith(("http://", "https://")) else f"passage:{quote(passage, safe='')}"


def cited_addresses(state: TaskState) -> list[str]:
    """The addresses of the `url_citation` annotations, which inspect-ai keeps beside the text of the answer."""
    content = state.output.message.content
    texts = [] if isinstance(content, str) else [part for part in content if isinstance(part, ContentText)]
    return [note.url for text in texts for note in text.citations or [] if note.type == "url"]
