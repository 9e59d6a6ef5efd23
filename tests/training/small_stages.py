"""Overrides of the small recipe, and a stage behind its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from emulator.served import EmulatedServer

BRIEF = ("stage.0.data.limit=2", "stage.1.prompts_per_step=2", "stage.1.samples_per_prompt=4")
BRIEF += ("stage.1.env.turn_tokens=12", "stage.2.data.limit=2")
"""Where it is all the same how much is played."""

SECOND_STAGE = """
[[stage]]
kind = "supervised"
name = "after"
steps = 2
rows_per_step = 2
learning_rate = 1e-4
data = { kind = "world_text", people = 200, mix = { phrasing = 1.0 } }
"""


def engine(stage: int = 1, **table: object) -> str:
    """The override that has a stage played by servers."""
    return f"stage.{stage}.engine={{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in table.items())} }}"


def through(servers: Sequence[EmulatedServer], stage: int = 1, **more: object) -> str:
    """The override that sends a stage to these servers."""
    return engine(stage, urls=[server.url for server in servers], **more)
