"""Pieces of transcripts in the manner of Search-R1, in words of our own."""

from __future__ import annotations

MENTIONS = (
    "Work it out between <think> and </think>. Ask the library with <search> words </search>; what it has will stand "
    "between <information> and </information>. Close with <answer> and </answer> and no explanation, such as "
    "<answer> Beijing </answer>. Now: which city is meant?\n"
)
"""The structure of the published prompt: two complete answer elements (their contents are "and" and "Beijing"), and
one element of each other kind."""

RETRY = (
    "\nThat move was not understood. My words for the library belong between <search> and </search>; my final words "
    "belong between <answer> and </answer>. Another attempt.\n"
)
"""The structure of the published sentence after a bad action: balanced tags, an answer element whose content is
"and", words after it."""


def chat(message: str) -> str:
    """One user message in ChatML, with the assistant's marker."""
    return f"<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


PROMPT = chat(MENTIONS)


def searched(passage: str) -> str:
    """A first turn that searches, and its results."""
    return (
        "<think>I will look.</think>\n<search>capital</search>\n\n"
        f'<information>Doc 1(Title: "Cities") {passage}</information>\n\n'
    )


def answered(answer: str) -> str:
    """A last turn."""
    return f"<think>I know.</think>\n<answer>{answer}</answer>"
