"""Servers are started with the flags that training needs, and with nothing of the trainer's own environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleuth.engines.launch.command import Launch, command_of, environment_of, is_cpu_build

CARD = {"card": "3", "memory": 44_900_000_000, "card_memory": 80_000_000_000}


def launch(kind: str = "vllm", **settings: object) -> Launch:
    given = {"program": ["vllm"], "model": "OWNER/NAME", "port": 30000, "context": 512, "dtype": "bfloat16"}
    return Launch(**({"kind": kind, "requests": 64} | given | settings))


def options_of(launch: Launch) -> str:
    return " ".join(command_of(launch))


def test_a_vllm_gets_context_precision_and_slots() -> None:
    assert options_of(launch(card="0")) == (
        "vllm serve OWNER/NAME --host 127.0.0.1 --port 30000 --max-model-len 512 --dtype bfloat16 --max-num-seqs 64"
    )


def test_a_vllm_that_shares_the_card_gets_its_share_and_can_sleep() -> None:
    assert options_of(launch(**CARD, sleeps=True)).endswith("--gpu-memory-utilization 0.56 --enable-sleep-mode")


def test_an_sglang_that_shares_the_card_gets_its_share_and_can_sleep() -> None:
    line = options_of(launch("sglang", program=["python"], **CARD, sleeps=True))
    assert line.startswith("python -m sglang.launch_server --model-path OWNER/NAME --host 127.0.0.1 --port 30000")
    assert line.endswith("--mem-fraction-static 0.56 --enable-memory-saver")


def test_an_sglang_gets_the_tokens_that_it_keeps_beside_the_context() -> None:
    """Also where they are more positions than the model has, which no request reaches."""
    assert "--context-length 518 " in options_of(launch("sglang", card="0"))
    assert environment_of(launch("sglang", card="0"), {})["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"


def test_log_probabilities_are_those_of_the_temperature() -> None:
    assert "--logprobs-mode processed_logprobs" in options_of(launch(scaled=True))
    assert "--logprobs-mode" not in options_of(launch())


def test_arguments_of_the_recipe_come_last() -> None:
    assert command_of(launch(arguments=["--dtype", "float16"]))[-2:] == ["--dtype", "float16"]


def test_a_server_on_the_cpu_needs_no_card() -> None:
    assert "--enforce-eager" in command_of(launch())
    assert "--gpu-memory-utilization" not in options_of(launch())
    assert options_of(launch("sglang")).endswith("--attention-backend torch_native --max-total-tokens 33152")
    assert environment_of(launch("sglang"), {})["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "SGLANG_USE_CPU_ENGINE" not in environment_of(launch("sglang", card="0"), {})
    settings = environment_of(launch(memory=1_500_000_000), {})
    assert (settings["VLLM_TARGET_DEVICE"], settings["VLLM_CPU_KVCACHE_SPACE"]) == ("cpu", "2")


def test_a_server_sees_its_card_and_not_the_place_of_the_trainer() -> None:
    trainer = {"CUDA_VISIBLE_DEVICES": "0", "RANK": "2", "PYTHONPATH": "/mine", "TORCHELASTIC_RUN_ID": "1", "HOME": "/"}
    settings = environment_of(launch(**CARD), trainer)
    assert settings == {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HOME": "/",
        "CUDA_VISIBLE_DEVICES": "3",
    }


def test_a_model_in_a_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert environment_of(launch("sglang", model=str(tmp_path), card="0"), {})["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("distribution", ["vllm_cpu", "vllm"])
def test_a_build_for_cpus_is_recognised(tmp_path: Path, distribution: str) -> None:
    (tmp_path / f"lib/python3.12/site-packages/{distribution}-0.32.0.dist-info").mkdir(parents=True)
    assert is_cpu_build(str(tmp_path / "bin" / "vllm")) == (distribution == "vllm_cpu")
