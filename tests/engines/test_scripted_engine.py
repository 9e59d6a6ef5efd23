from __future__ import annotations

import asyncio

from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import encode
from sleuth.types import Sampling


def complete(tokenizer, answer, prompt, **sampling):
    engine = ScriptedEngine(tokenizer, answer)
    return asyncio.run(engine.complete(encode(tokenizer, prompt), Sampling(**{"max_tokens": 50, **sampling})))


def test_the_script_sees_the_text_so_far_and_its_answer_is_encoded(tokenizer):
    written = complete(tokenizer, lambda text, sampling: text.upper(), "Ada?")
    assert (written.text, written.stop, written.logprobs) == ("ADA?", "eos", None)
    assert list(written.tokens) == encode(tokenizer, "ADA?")


def test_the_script_ends_at_a_stop_string(tokenizer):
    written = complete(tokenizer, lambda *_: "<search> Ada </search> and more", "Who?", stops=("</search>",))
    assert (written.text, written.stop) == ("<search> Ada </search>", "stop")
    assert len(written.tokens) < len(encode(tokenizer, "<search> Ada </search> and more"))


def test_the_script_ends_at_its_token_budget(tokenizer):
    written = complete(tokenizer, lambda *_: "Ada Voss was born", "Who?", max_tokens=3)
    assert (len(written.tokens), written.stop) == (3, "length")
    assert "Ada Voss was born".startswith(written.text)


def test_the_stream_is_the_completion(tokenizer):
    engine = ScriptedEngine(tokenizer, lambda *_: "Tarn")

    async def collect():
        return [chunk async for chunk in engine.stream(encode(tokenizer, "Where?"), Sampling(max_tokens=9))]

    chunks = asyncio.run(collect())
    assert ["".join(chunk.text for chunk in chunks), chunks[-1].stop] == ["Tarn", "eos"]
