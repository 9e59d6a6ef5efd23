"""One GPU for trainer and server: what torch keeps of freed tensors is returned before the server wakes."""

from __future__ import annotations

from pathlib import Path

import torch
from emulator.served import emulated_server

from sleuth.engines.remote.vllm import Vllm
from sleuth.learn.models import load_model
from sleuth.learn.policy import Policy

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


def test_cached_memory_is_released_between_the_update_and_the_waking_of_a_server(
    recipe_file, run, tmp_path, monkeypatch
):
    events: list[str] = []
    update, reserve = Policy.update, Vllm.reserve

    def updating(*arguments: object, **settings: object) -> object:
        events.append("update")
        return update(*arguments, **settings)

    async def waking(*arguments: object) -> None:
        events.append("wake")
        await reserve(*arguments)

    monkeypatch.setattr(Policy, "update", updating)
    monkeypatch.setattr(Vllm, "reserve", waking)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("release"))
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with emulated_server("vllm", model, tokenizer, context=512) as server:
        run(recipe_file, tmp_path / "run", f"stage.1.engine={{urls=['{server.url}'], sleeps=true}}", "stage.1.steps=2")
    woken = [at for at, event in enumerate(events) if event == "wake"]
    assert len(woken) == 2
    assert [events[at - 2 : at + 1] for at in woken] == [["update", "release", "wake"]] * 2
