"""Twelve families of chat templates, rebuilt in small ones: what is found of each, also in the table of the docs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from model_families import FAMILIES

from sleuth.plan.model_check import examine, findings_of
from sleuth.plan.model_files import Finding
from sleuth.types import SleuthError

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"
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


@pytest.fixture(scope="module")
def found() -> dict[str, list[Finding]]:
    return {name: examine(family.files()) for name, family in FAMILIES.items()}


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
    """`| Qwen3 | yes | drops thoughts | 1 |`."""
    levels = {one.check: one.level for one in findings}
    history = {"ok": "appends", "warning": "drops thoughts"}[levels["history"]] if "history" in levels else ""
    warnings = sum(one.level == "warning" for one in findings)
    return f"| {name} | {'yes' if levels['tool calls'] == 'ok' else 'no'} | {history} | {warnings} |\n"


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
    assert {"template", "tool calls", "stop tokens"} <= {one.check for one in findings}
