from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gguf_models import save_model, write_protocol
from verb import sleuth

from sleuth.cli.convert import INSTALL
from sleuth.host.disk import shown
from sleuth.runs.model_card import LOOP


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with a protocol."""
    folder = tmp_path_factory.mktemp("export") / "agent"
    save_model(folder, "qwen3")
    write_protocol(folder, "search_r1", "search_rules", context=128)
    return folder


def test_export_prints_what_it_wrote_and_that_the_search_loop_is_no_part_of_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    result = sleuth("export", model, "--gguf", "--dtype", "f16")
    assert result.exit_code == 0, result.stderr
    first, protocol, loop, after = result.stdout.splitlines()
    size = shown((tmp_path / "agent-f16.gguf").stat().st_size)
    assert first == f"agent-f16.gguf: qwen3, 24 tensors, 28,640 parameters, f16, {size}"
    assert protocol.startswith("protocol ")
    assert protocol.endswith(": agent-f16.protocol.json")
    assert loop == LOOP
    assert after == "Next: llama-server -m agent-f16.gguf -c 128; for Ollama, the Modelfile in agent-f16.md"
    assert {path.name for path in tmp_path.iterdir()} == {"agent-f16.gguf", "agent-f16.md", "agent-f16.protocol.json"}
    assert "TEMPLATE {{ .Prompt }}" in (tmp_path / "agent-f16.md").read_text(), "the prompt is sent without a template"


def test_a_model_without_a_protocol_is_exported_with_a_line_that_says_so(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    protocol = (model / "protocol.json").read_bytes()
    (model / "protocol.json").unlink()
    result = sleuth("export", model, "--gguf", "--out", tmp_path / "made" / "x.gguf")
    (model / "protocol.json").write_bytes(protocol)
    assert f"no protocol card: {model} has no protocol.json\n" in result.stdout
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"x.gguf", "x.md"}


def test_the_json_of_an_export_is_one_object(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    result = sleuth("export", model, "--gguf", "--out", tmp_path / "x.gguf", "--json")
    written = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (written["file"], written["dtype"], written["tensors"]) == (str(tmp_path / "x.gguf"), "f32", 24)
    assert written["bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert written["protocol_file"] == str(tmp_path / "x.protocol.json")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("agent",), "name the format to write: --gguf"),
        (("absent", "--gguf"), "absent: no such folder"),
        (("agent", "--gguf", "--out", "x.bin"), "--out x.bin: the name of a GGUF file ends in .gguf"),
        (("agent", "--gguf"), INSTALL),
    ],
)
def test_a_mistake_in_an_export_is_one_line_and_status_2(
    model: Path, arguments: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    monkeypatch.setitem(sys.modules, "gguf", None)
    result = sleuth("export", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {complaint}\n")
    assert [path.name for path in model.parent.iterdir()] == ["agent"]
