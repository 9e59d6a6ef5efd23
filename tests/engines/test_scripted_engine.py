from __future__ import annotations

import asyncio

import pytest

from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import encode
from sleuth.types import Sampling


@pytest.mark.parametrize(
    ("script", "limits", "text", "stop"),
    [
        (lambda text, sampling: text.upper(), {}, "ADA?", "eos"),
        (lambda *_: "<search> Ada </search> and more", {"stops": ("</search>",)}, "<search> Ada </search>", "stop"),
        (lambda *_: "Ada? Ada?", {"max_tokens": 1}, None, "length"),
    ],
)
def test_the_script_sees_the_text_so_far_and_its_answer_is_encoded_and_cut(tokenizer, script, limits, text, stop):
    engine, prompt, sampling = ScriptedEngine(tokenizer, script), encode(tokenizer, "Ada?"), {"max_tokens": 50} | limits

    async def collect():
        return [chunk async for chunk in engine.stream(prompt, Sampling(**sampling))]

    written = asyncio.run(engine.complete(prompt, Sampling(**sampling)))
    assert (written.stop, written.logprobs) == (stop, None)
    assert list(written.tokens) == encode(tokenizer, written.text)
    assert written.text == text if text else len(written.tokens) == 1
    chunks = asyncio.run(collect())
    assert ["".join(chunk.text for chunk in chunks), chunks[-1].stop] == [written.text, stop]
