"""Stages that measure generate on the servers of a `grpo` stage, and write what they would without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from emulator.served import EmulatedServer, emulated_server
from real_vllm import RealVllm
from transformers import PreTrainedModel

from sleuth.engines.remote.pool import PoolEngine
from sleuth.evaluation import eval_session
from sleuth.learn.models import load_model
from sleuth.recipe import GrpoRecipe, Recipe, load_recipe
from sleuth.runs.run_folder import RunFolder
from sleuth.think.world_texts import CarelessTexts
from sleuth.training import servers
from sleuth.training.servers import RunServers
from sleuth.training.stage_context import StageContext
from sleuth.types import SleuthError

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
GREEDY = 1e-4
"""A temperature at which the likeliest token is drawn."""
RECIPE = """
name = "measured"
model = "{base}"
seed = 2

[[stage]]
kind = "win_rate"
name = "against_base"
judge = "ending"
stops = ["."]
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6 }}

[[stage]]
kind = "probe"
name = "thoughts"
samples = 2
temperature = {greedy}
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6, limit = 3 }}
env = {{ kind = "thought", thought_tokens = 6, suffix_tokens = 4, stops = ["."] }}
judge = "ending"

[[stage]]
kind = "gate"
name = "gate"
samples = 2
temperature = {greedy}
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6, limit = 3 }}
env = {{ kind = "thought", thought_tokens = 6 }}
reward = [{{ kind = "gain" }}]

[[stage]]
kind = "reason"
name = "reasoning"
samples = 1
temperature = 0.0
max_tokens = 8
sets = [
  {{ layout = "gsm8k", problems = "{folder}/gsm8k.jsonl" }},
  {{ layout = "math_500", problems = "{folder}/math.jsonl" }},
]

[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 2
samples_per_prompt = 2
learning_rate = 1e-3
context = 400
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6 }}
env = {{ kind = "thought", thought_tokens = 6 }}
reward = [{{ kind = "gain" }}]
"""
WIN_RATE, REASON = 0, 3


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    texts = [CarelessTexts(200, "test", (0,)).text(number) for number in range(5)]
    rows = {
        "texts": [
            {"id": str(at), "text": text.text, "cut": len(text.beginning), "golden_answers": [text.answer]}
            for at, text in enumerate(texts)
        ],
        "gsm8k": [{"question": "Two and two?", "answer": "#### 4"}, {"question": "Ten less one?", "answer": "#### 9"}],
        "math": [{"problem": "Half of one?", "answer": "1", "unique_id": "test/a/1.json", "subject": "Algebra"}],
    }
    for name, of_file in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_file))
    file = tmp_path / "measured.toml"
    file.write_text(RECIPE.format(base=BASE, folder=tmp_path, greedy=GREEDY))
    return file


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A model that is not the base any more."""
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 0.2 * torch.randn(()))
    model.save_pretrained(tmp_path / "trained")
    tokenizer.save_pretrained(tmp_path / "trained")
    return tmp_path / "trained"


@pytest.fixture
def pair() -> Iterator[list[EmulatedServer]]:
    """A vLLM and an SGLang of the tiny base model."""
    one, other = (load_model(str(BASE), dtype="float32", device="cpu") for _ in range(2))
    with emulated_server("vllm", *one, context=512) as vllm, emulated_server("sglang", *other, context=512) as sglang:
        yield [vllm, sglang]


def through(pair: list[EmulatedServer], **more: object) -> str:
    table = {"urls": [server.url for server in pair], **more}
    return f"grpo.engine={{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in table.items())} }}"


def measure(recipe: Path, folder: Path, model: Path, *overrides: str, only: int | None = None) -> dict[str, Any]:
    """The evaluation files of the stages that measure this model, or of one of them, by name."""
    resolved = load_recipe(recipe, overrides)
    with RunFolder.open(folder, resolved) as place:
        for index, stage in enumerate(resolved.stage):
            if stage.measures and only in (None, index):
                context = StageContext(recipe=resolved, index=index, folder=place, model=str(model))
                assert stage.run(context) == model
    return {file.stem: json.loads(file.read_text()) for file in (folder / "eval").iterdir()}


def weights_are(server: EmulatedServer, model: PreTrainedModel) -> bool:
    held = server.engine._model.state_dict()
    return all(torch.equal(weight, held[name]) for name, weight in model.state_dict().items())


def test_stages_that_measure_write_on_servers_what_they_would_in_this_process(
    recipe: Path, trained: Path, tmp_path: Path, pair: list[EmulatedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = measure(recipe, tmp_path / "here", trained)
    monkeypatch.delattr(eval_session, "open_engine")
    there = measure(recipe, tmp_path / "there", trained, through(pair))
    assert there == here
    assert here.keys() == {
        "against_base", "thoughts", "gate", "reasoning", "reasoning@gsm8k", "reasoning@math_500"
    }  # fmt: skip
    assert any(record["ours"] != record["theirs"] for record in here["against_base"]["records"])
    assert all(server.fault() > 10 for server in pair)


@pytest.mark.servers
def test_a_real_vllm_takes_the_weights_of_both_models_and_writes_what_they_would(
    recipe: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = measure(recipe, tmp_path / "here", trained)
    monkeypatch.delattr(eval_session, "open_engine")
    server = RealVllm(BASE, tmp_path / "vllm.log", context=512)
    server.start()
    try:
        there = measure(recipe, tmp_path / "there", trained, f"grpo.engine={{ urls = ['{server.url}'] }}")
    finally:
        server.kill()
    assert there == here


@pytest.mark.parametrize("sleeps", [False, True])
def test_after_two_models_the_servers_have_the_weights_of_the_runs_own(
    recipe: Path, trained: Path, tmp_path: Path, pair: list[EmulatedServer], sleeps: bool
) -> None:
    found = measure(recipe, tmp_path / "run", trained, through(pair, sleeps=sleeps), only=WIN_RATE)["against_base"]
    assert (found["model"], found["against"]) == (str(trained), str(BASE))
    ours, theirs = (load_model(str(model), dtype="float32", device="cpu")[0] for model in (trained, BASE))
    for server in pair:
        assert weights_are(server, ours)
        assert not weights_are(server, theirs)
        assert not server.engine.asleep


def test_a_server_that_cannot_be_used_or_is_lost_is_one_line(
    recipe: Path, tmp_path: Path, pair: list[EmulatedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, *overrides: str) -> str:
        with pytest.raises(SleuthError) as caught:
            measure(recipe, tmp_path / name, BASE, *overrides, only=REASON)
        assert not list((tmp_path / name).glob("eval/*"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    nobody = 'grpo.engine={ urls = ["http://127.0.0.1:9"] }'
    assert refused("nobody", nobody).startswith("engine.urls: http://127.0.0.1:9: does not answer")
    long = refused("long", through(pair), f"stage.{REASON}.max_tokens=500")
    assert "takes 512 tokens, and context = " in long
    assert "start it with a longer context" in long
    publish = PoolEngine.publish

    def then_lost(engine: PoolEngine, version: int) -> None:
        publish(engine, version)
        for server in pair:
            server.fault(forget=60.0)

    monkeypatch.setattr(PoolEngine, "publish", then_lost)
    lost = refused("lost", through(pair, unavailable_timeout=0.5))
    assert lost.startswith("no server of the pool answered for 0.5 seconds")


def test_servers_of_the_run_start_again_where_a_stage_needs_a_longer_context(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, int]] = []
    ended: list[int] = []
    said: list[str] = []
    monkeypatch.setattr(
        servers, "start_all", lambda these, say: started.extend((one.name, one.launch.context) for one in these)
    )
    monkeypatch.setattr(servers, "end_all", lambda these: ended.extend(one.launch.context for one in these))
    resolved = load_recipe(recipe, ("grpo.engine={ launch = 'vllm', command = 'true' }",))
    pool = pool_of(resolved)
    with closing(RunServers(resolved, tmp_path, said.append, ranks=1, split=default)) as run_servers:
        for context in (300, 400, 600, 500, 400):
            taken = run_servers.of(pool, str(BASE), context)
            assert taken is not None
        assert started == [("vllm-0", 400), ("vllm-0", 600)]
        assert ended == [400]
    assert said == ["the servers take 400 tokens: they are started again to take 600"]
    assert ended == [400, 600]


def default(*_: object, **__: object) -> tuple[None, int]:
    """A server's own memory, and 64 turns in flight."""
    return None, 64


def pool_of(recipe: Recipe) -> Any:
    [stage] = recipe.stages_of(GrpoRecipe).values()
    return stage.engine
