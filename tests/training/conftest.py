"""Emulated servers of the tiny base model, for stages and for ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from emulator.served import EmulatedServer, emulated_server

from sleuth.learn.models import load_model

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


@pytest.fixture
def servers() -> Iterator[Callable[..., list[EmulatedServer]]]:
    """`servers("vllm", "sglang")`, each with a model of its own."""
    with ExitStack() as open_:

        def start(*kinds: str, **faults: Any) -> list[EmulatedServer]:
            models = [load_model(str(BASE), dtype="float32", device="cpu") for _ in kinds]
            return [
                open_.enter_context(emulated_server(kind, *loaded, context=512, **faults))
                for kind, loaded in zip(kinds, models, strict=True)
            ]

        yield start
