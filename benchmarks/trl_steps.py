"""A whole step of TRL's `GRPOTrainer` with a tool: its generation, its tool loop, its rewards, its update.

A random model neither ends a turn nor writes a tool call, so two things are fixed: the number of tokens of each turn
(generation runs to the longest of the batch, as with end tokens), and the parser, which reads every first turn as a
tool call with the turn's text as the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.episodes import PROMPTS, Episode, Library, reward_of
from benchmarks.sides import Terms
from benchmarks.trl_peer import Clock, grpo_config
from benchmarks.workloads import SIBLINGS

COMPLETION = 2_048
"""More than query, passages and answer can have, so that nothing is dropped for its length."""


class TrlStep:
    """TRL's trainer with the library as its tool; the update in micro-batches of `setting` rows."""

    def __init__(self, folder: Path, *, setting: int) -> None:
        self.folder = folder
        rows = PROMPTS * SIBLINGS
        self.terms = Terms(model=folder / "small", setting=setting, rows=rows, siblings=SIBLINGS)

    def play(self, steps: Sequence[tuple[Sequence[Episode], Library]]) -> list[float]:
        """The seconds of one step for each set of episodes."""
        clock = Clock()
        prompts = [episode.prompt for episodes, _ in steps for episode in episodes[::SIBLINGS]]
        trainer = TwoTurnTrainer(
            model=AutoModelForCausalLM.from_pretrained(self.terms.model),
            reward_funcs=lambda completion_ids, **_: [reward_of(tokens) for tokens in completion_ids],
            args=grpo_config(self.terms, max_completion_length=COMPLETION, max_tool_calling_iterations=1),
            train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in prompts]}),
            processing_class=_tokenizer(self.terms.model),
            tools=[search],
            callbacks=[clock],
        )
        trainer.follow(steps)
        trainer.args.max_steps = len(steps)
        trainer.train()
        return clock.seconds


class TwoTurnTrainer(GRPOTrainer):
    """`GRPOTrainer` whose turns have the lengths of the episodes."""

    def follow(self, steps: Sequence[tuple[Sequence[Episode], Library]]) -> None:
        """Sets the episodes of the coming steps."""
        self.turns = iter(
            [
                (library, [getattr(episode, turn) for episode in episodes])
                for episodes, library in steps
                for turn in ("query", "answer")
            ]
        )
        self.eos_token_ids = []
        self.generation_config.eos_token_id = self.generation_kwargs["eos_token_id"] = None

    def _generate_single_turn(self, prompt_ids: Any, *others: Any, **more: Any) -> tuple[list[list[int]], None]:
        library, lengths = next(self.turns)
        ASKED.library = library
        self.generation_config.max_new_tokens = max(lengths)
        written, logprobs = super()._generate_single_turn(prompt_ids, *others, **more)
        assert all(len(tokens) >= length for tokens, length in zip(written, lengths, strict=True))
        return [tokens[:length] for tokens, length in zip(written, lengths, strict=True)], logprobs


class Asked:
    """The library of the tool: TRL takes a plain function, and each step may have its own library."""

    library: Library


ASKED = Asked()


def search(query: str) -> str:
    """Look something up.

    Args:
        query: What to look for.

    Returns:
        The passages found, one a line.
    """
    return ASKED.library.search(query)


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer with a parser that finds a call of `search` in whatever was written."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def parse(ids: list[int], **context: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids)
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": text}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}

    tokenizer.response_template = {}
    tokenizer.parse_response = parse
    return tokenizer
