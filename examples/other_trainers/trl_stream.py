"""The stream of rows of "The second idea" in TRL, with `shuffle_dataset=False` and `max_steps`."""

from datasets import load_dataset


def lines(file):
    rows = load_dataset("json", data_files=file, split="train", streaming=True)
    return rows.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})
