from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from emulator.served import EmulatedServer, emulated_server
from pools import ENOUGH, Pools
from transformers import PreTrainedModel


@pytest.fixture
def learner(make_model) -> PreTrainedModel:
    return make_model()


@pytest.fixture
def servers(make_model, tokenizer) -> Iterator[Callable[..., list[EmulatedServer]]]:
    """`servers("vllm", "sglang", latency=0.1)`: each with a model of its own."""
    with ExitStack() as open_:
        yield lambda *kinds, **how: [
            open_.enter_context(emulated_server(kind, make_model(), tokenizer, context=ENOUGH[kind], **how))
            for kind in kinds
        ]


@pytest.fixture
def pools(learner, tokenizer, tmp_path, words) -> Pools:
    return Pools(learner, tokenizer, tmp_path / "weights", words)
