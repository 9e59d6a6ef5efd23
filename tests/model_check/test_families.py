"""Twelve families of chat templates, rebuilt in small ones: what is found of each, also in the table of the docs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from families import FAMILIES

from sleuth.envs.render_process import RenderProcess
from sleuth.model_check.examine import examine, findings_of
from sleuth.model_check.finding import Finding
from sleuth.types import SleuthError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "check_model.md"
HUB = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3.5-0.8B",
    "meta-llama/Llama-3.2-1B-Instruct",
    "google/gemma-3-1b-it",
    "microsoft/phi-4",
    "HuggingFaceTB/SmolLM3-3B",
    "ibm-granite/granite-4.0-h-1b",
    "allenai/Olmo-3-7B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "openai/gpt-oss-20b",
)
HISTORIES = {
    "append-only": "appends",
    "drops the thought": "drops thoughts",
    "with which its prompt began": "drops what prompts add",
    "changes earlier text": "moves or trims text",
    "the template refuses": "refused",
}


@pytest.fixture(scope="module")
def process() -> Iterator[RenderProcess]:
    with RenderProcess() as started:
        yield started


@pytest.fixture(scope="module")
def found(process: RenderProcess) -> dict[str, list[Finding]]:
    return {name: examine(family.files(), process) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_habits_of_a_family_are_found(name: str, found: dict[str, list[Finding]]) -> None:
    for check, level, part in FAMILIES[name].finds:
        lines = [str(one) for one in found[name] if (one.check, one.level) == (check, level)]
        assert any(part in line for line in lines), f"{level}: {check}: {part}\n" + "\n".join(map(str, found[name]))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_finding_that_is_not_ok_says_what_would_be_right(name: str, found: dict[str, list[Finding]]) -> None:
    assert {one.level for one in found[name]} <= {"ok", "warning"}  # each of these models works somewhere
    for one in found[name]:
        assert bool(one.fix) == (one.level != "ok"), one
        assert "\n" not in str(one)


def test_the_table_of_the_docs_is_what_is_found(found: dict[str, list[Finding]]) -> None:
    table = "".join(row(name, findings) for name, findings in found.items())
    assert table in PAGE.read_text(), f"the rows in {PAGE.name} should be:\n{table}"


def row(name: str, findings: Sequence[Finding]) -> str:
    """`| Qwen2.5 | hermes, qwen25 | yes | appends | appends | 3 |`."""
    calls = next((one.line for one in findings if one.check == "tool calls" and "read back by" in one.line), "")
    readers = calls.partition("read back by ")[2].replace(" and ", ", ")
    dialects = next(one for one in findings if one.check == "dialects")
    ways = [next(one.line for one in findings if one.check == f"history as {way}") for way in ("parsed", "written")]
    histories = [next(short for part, short in HISTORIES.items() if part in way) for way in ways]
    warnings = sum(one.level == "warning" for one in findings)
    cells = (name, readers or "none is written", "yes" if dialects.level == "ok" else "no", *histories, warnings)
    return f"| {' | '.join(map(str, cells))} |\n"


@pytest.mark.slow
@pytest.mark.hub
@pytest.mark.parametrize("model", HUB)
def test_a_published_model_is_examined_within_a_minute(model: str) -> None:
    began = time.monotonic()
    try:
        findings = findings_of(model)
    except SleuthError as error:
        if not any(reason in str(error) for reason in ("could not be reached", "gated", "restricted")):
            raise
        pytest.skip(str(error))  # no network, or a licence to accept first
    assert time.monotonic() - began < 60
    assert {"template", "tool calls", "history as parsed"} <= {one.check for one in findings}
