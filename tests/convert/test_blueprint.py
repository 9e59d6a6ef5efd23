from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import FAMILIES, make_model, weights_of

from sleuth.convert.shards import Blueprint, read_blueprint
from sleuth.types import SleuthError

SOURCE = Path("w.pt")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest):
    return make_model(request.param)


@pytest.fixture(scope="module")
def blueprint(model, tmp_path_factory: pytest.TempPathFactory) -> Blueprint:
    folder = tmp_path_factory.mktemp("config")
    model.config.save_pretrained(folder)
    return read_blueprint(folder)


def test_the_blueprint_is_the_model_without_its_weights(model, blueprint: Blueprint) -> None:
    assert blueprint.shapes == {name: tuple(weight.shape) for name, weight in weights_of(model).items()}
    assert blueprint.tied == (
        {"lm_head.weight": "model.embed_tokens.weight"} if model.config.tie_word_embeddings else {}
    )


def test_names_of_the_inner_model_are_understood_if_it_is_the_whole_model(blueprint: Blueprint) -> None:
    inner = [name.removeprefix("model.") for name in blueprint.shapes if name.startswith("model.")]
    if blueprint.tied:
        assert blueprint.match_names(inner, SOURCE)["model.norm.weight"] == "norm.weight"
    else:
        with pytest.raises(SleuthError, match=r"1 tensor is missing \(lm_head.weight\)$"):
            blueprint.match_names(inner, SOURCE)


def test_missing_and_unexpected_names_are_reported_in_one_line(blueprint: Blueprint) -> None:
    names = [name for name in blueprint.shapes if "k_proj.weight" not in name]
    with pytest.raises(SleuthError) as caught:
        blueprint.match_names([*names, "a", "b", "c", "d"], SOURCE)
    assert str(caught.value) == (
        f"w.pt: is not the model that {blueprint.folder / 'config.json'} describes: 2 tensors are missing "
        "(model.layers.0.self_attn.k_proj.weight, model.layers.1.self_attn.k_proj.weight); "
        "4 tensors are unexpected (a, b, c, ..)"
    )


def test_lora_weights_are_recognised_by_their_names(blueprint: Blueprint) -> None:
    with pytest.raises(SleuthError, match="contains LoRA weights"):
        blueprint.match_names([*blueprint.shapes, "model.layers.0.self_attn.q_proj.lora_A.weight"], SOURCE)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "no-such-model"},
        {"model_type": "vit"},
        {"hidden_size": 3},
        {"model_type": "qwen3", "num_attention_heads": "three"},
        {"model_type": "x", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}},
    ],
)
def test_a_config_without_a_causal_model_is_reported_in_one_line(config: dict, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w')\n")
    with pytest.raises(SleuthError, match=r"config.json: describes no causal language model: ") as caught:
        read_blueprint(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "proof").exists()
