"""A teacher on a server says what it would say in this process; what it does not say is missing, never zero."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from emulator.engine import EmulatedEngine
from emulator.served import KINDS, EmulatedServer, emulated_server
from verb import sleuth

from sleuth.engines.remote import served_teacher
from sleuth.engines.remote.served_teacher import ServedTeacher, Wanted
from sleuth.engines.remote.server import Server
from sleuth.learn.models import load_model
from sleuth.types import SleuthError

Run = Callable[..., Path]
BASE = Path(__file__).parents[2] / "models" / "tiny-base"
TOKENS = tuple(range(100, 140))
BRIEF = ("stage.0.data.limit=1", "stage.2.data.limit=1", "stage.1.steps=1", "stage.1.probe_prompts=0")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A model other than the policy, in a folder with the name under which servers of tests serve."""
    folder = shutil.copytree(BASE, tmp_path / "tiny")
    model, _ = load_model(str(BASE), dtype="float32", device="cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def server(teacher: Path) -> Iterator[EmulatedServer]:
    with emulated_server("vllm", *load_model(str(teacher), dtype="float32", device="cpu"), context=513) as emulated:
        yield emulated


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_teacher, "PAUSE", 0.0)


def following(teacher: Path, server: EmulatedServer, *more: str) -> tuple[str, ...]:
    return (f'stage.1.teacher={{ model = "{teacher}", url = "{server.url}" }}', *more, *BRIEF)


def row(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_both_servers_return_the_log_probabilities_of_the_model(kind: str) -> None:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with torch.inference_mode():
        logprobs = model(torch.tensor([TOKENS])).logits[0].float().log_softmax(-1)
    with emulated_server(kind, model, tokenizer) as emulated:
        name = "SGLang" if kind == "sglang" else "vLLM"
        serving = Server(url=emulated.url, kind=name, version=None, model="tiny", context=256)
        asking = ServedTeacher(serving, top_k=3, seconds=60)
        [early, late] = asking.verdicts([Wanted(tokens=TOKENS, first=first) for first in (1, 30)])
    assert early is not None
    assert late is not None
    expected = [logprobs[at - 1, token].item() for at, token in enumerate(TOKENS) if at]
    assert early.logprobs == pytest.approx([0.0, *expected], abs=1e-4)
    assert late.logprobs == pytest.approx([0.0] * 30 + expected[29:], abs=1e-4)
    assert early.top[30:] == late.top[30:]
    assert late.top[:30] == ((),) * 30
    best = logprobs[:-1].topk(3)
    assert [[token for token, _ in of_place] for of_place in early.top[1:]] == best.indices.tolist()
    for of_place, values in zip(early.top[1:], best.values.tolist(), strict=True):
        assert [logprob for _, logprob in of_place] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("more", [(), ("stage.1.teacher.top_k=4",)])
def test_a_stage_learns_from_a_server_what_it_would_learn_from_the_model(
    run: Run, recipe_file: Path, teacher: Path, server: EmulatedServer, tmp_path: Path, more: tuple[str, ...]
) -> None:
    run(recipe_file, tmp_path / "local", f'stage.1.teacher.model="{teacher}"', *more, *BRIEF)
    run(recipe_file, tmp_path / "served", *following(teacher, server, *more))
    one, two = row(tmp_path / "local"), row(tmp_path / "served")
    assert two["teacher_missing_fraction"] == 0.0
    assert "teacher_missing_fraction" not in one
    for figure in ("loss", "teacher_kl", "gradient_norm"):
        assert two[figure] == pytest.approx(one[figure], rel=1e-3, abs=1e-6)


def test_a_verdict_that_a_server_does_not_give_is_missing_and_too_many_end_the_run(
    run: Run, recipe_file: Path, teacher: Path, server: EmulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = EmulatedEngine.prompt_logprobs, []

    async def some(engine: EmulatedEngine, prompt: list[int], top: int):
        asked.append(prompt)
        if len(asked) > 1 and sum(prompt) % 4 == 0:  # the first is the check before the run
            raise RuntimeError("lost")
        return await answer(engine, prompt, top)

    monkeypatch.setattr(EmulatedEngine, "prompt_logprobs", some)
    run(recipe_file, tmp_path / "run", *following(teacher, server))
    assert 0 < row(tmp_path / "run")["teacher_missing_fraction"] < 0.5
    asked.clear()
    with pytest.raises(SleuthError) as error:
        run(recipe_file, tmp_path / "strict", *following(teacher, server, "stage.1.max_missing_fraction=0.0"))
    assert "verdicts of the teacher at" in str(error.value)
    assert "more than max_missing_fraction = 0.0 allows; nothing was trained" in str(error.value)


def refused(recipe: Path, folder: Path, *settings: str) -> str:
    options = [option for setting in (*settings, *BRIEF) for option in ("--set", setting)]
    result = sleuth("train", recipe, "--run", folder, *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_server_that_cannot_teach_is_refused_in_one_line(
    recipe_file: Path, teacher: Path, server: EmulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '{{ model = "{}", url = "{}" }}'
    said = refused(recipe_file, tmp_path / "a", "stage.1.teacher=" + table.format(BASE, server.url))
    assert "teacher.url: " in said
    assert "serves 'tiny', and teacher.model is" in said
    assert "or serve it under that name (--served-model-name) if it is the same model" in said
    assert "--served-as" not in said
    table_set = ["--set", "stage.1.teacher=" + table.format(BASE, server.url)]
    known = sleuth("check", "recipe", recipe_file, *table_set)
    assert known.exit_code == 2
    assert "serves 'tiny', and teacher.model is" in known.stderr
    said = refused(recipe_file, tmp_path / "b", "stage.1.teacher=" + table.format(teacher, "http://127.0.0.1:1"))
    assert "teacher.url: http://127.0.0.1:1: does not answer" in said
    said = refused(recipe_file, tmp_path / "c", *following(teacher, server, "stage.1.context=513"))
    assert "takes 513 tokens, and context = 513 needs one more" in said
    monkeypatch.setattr(ServedTeacher, "_read", lambda *args: None)
    said = refused(recipe_file, tmp_path / "d", *following(teacher, server))
    assert "returns no log-probabilities of given tokens, which a teacher must" in said


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ('stage.1.teacher={ model = "models/tiny-base", url = "h100:8000" }', "expected http://HOST:PORT"),
        ('stage.1.teacher={ model = "models/tiny-base", seconds = 9 }', "seconds = 9 has no effect without url"),
    ],
)
def test_what_cannot_be_meant_is_one_line(recipe_file: Path, tmp_path: Path, setting: str, reason: str) -> None:
    assert reason in refused(recipe_file, tmp_path / "run", setting)


def test_a_served_teacher_is_followed_at_temperature_1(recipe_file: Path, tmp_path: Path) -> None:
    table = 'stage.1.teacher={ model = "models/tiny-base", url = "http://h:1" }'
    said = refused(recipe_file, tmp_path / "run", table, "stage.1.sampling.temperature=0.7")
    assert "sampling.temperature = 0.7 is not that of a teacher on a server" in said
