"""Inputs that a run would miss later are refused before its first step, in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from refusals import line_of
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from verb import write_rows

from sleuth import family
from sleuth.cli import pipeline
from sleuth.cli.pipeline import require_inputs, run_recipe
from sleuth.host.hardware import CARDS, card_with
from sleuth.learn.adapters import Adapters, add_adapters
from sleuth.learn.models import load_model, random_model, require_teacher
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.plan.fit import plan_for_cpu
from sleuth.plan.model_check import findings_of
from sleuth.recipe import InitRecipe, Recipe, load_recipe
from sleuth.render import load_tokenizer
from sleuth.runs.run_folder import RunFolder
from sleuth.types import SleuthError
from sleuth.world.tokens import make_tokenizer

RECIPE = """
name = "r"
model = "{folder}/model"
[[stage]]
kind = "grpo"
steps = 1
prompts_per_step = 1
samples_per_prompt = 2
learning_rate = 1e-3
context = 128
data = {{ questions = "{folder}/questions.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "{folder}/prompt.txt", index = "{folder}/index" }}
reward = [{{ kind = "answer" }}]
"""


INIT = InitRecipe(layers=1, width=8, heads=1, kv_heads=1, head_dim=8, mlp=8, context=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer(200)
    random_model(INIT, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "model")
    question = {"id": "1", "question": "Where?", "golden_answers": ["here"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "prompt.txt").write_text("Question: {question}\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path


def recipe(folder: Path, *overrides: str) -> Recipe:
    return load_recipe(folder / "recipe.toml", ['stage.0.env.retriever="empty"', *overrides])


def complaint(given: Recipe) -> str:
    return line_of(require_inputs, given)


@pytest.mark.parametrize("card", [[], ['card="1 x 24GB"']])
def test_a_run_on_a_card_begins_with_its_plan(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, card: list[str]
) -> None:
    monkeypatch.setattr(pipeline, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: SimpleNamespace(total_memory=85_000_000_000))
    planned = pipeline._planned(load_recipe(recipe_file, card), 1)
    assert planned["grpo"]["seconds"]
    assert planned["grpo"]["memory_bytes"]


@pytest.mark.parametrize(
    ("memory", "like"),
    [(85_000_000_000, "a100-80"), (150_000_000_000, "h200-141"), (25_400_000_000, "l4"), (8_000_000_000, "l4")],
)
def test_a_card_without_a_name_has_the_figures_of_the_list(memory: int, like: str) -> None:
    found = card_with(memory)
    assert (found.memory, found.flops, found.bandwidth) == (memory, CARDS[like].flops, CARDS[like].bandwidth)


def test_every_kind_of_stage_names_what_runs_it() -> None:
    for stage in family.tables("stages"):
        runner = import_module(stage.runner)
        assert callable(runner.require_inputs)
        assert callable(stage.run if "run" in vars(stage) else runner.run)


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
HEADS = SIZES | {"head_dim": 8}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "shared_intermediate_size": 32}
GEMMA = HEADS | {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
EYES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2": ("", SIZES),
    "Qwen3": ("", HEADS),
    "Llama": ("", SIZES),
    "Gemma3Text": ("", GEMMA),
    "Gemma3": ("", {"text_config": GEMMA, "vision_config": EYES | {"patch_size": 14}, "mm_tokens_per_image": 4}),
    "Lfm2": ("it has layers of conv", SIZES | {"layer_types": ["conv", "full_attention"]}),
    "Gemma2": ("its attention is soft-capped at 50.0", HEADS),
    "GraniteMoeHybrid": (
        "it has layers of linear_attention",
        SIZES | MAMBA | {"layer_types": ["mamba", "attention"], "num_local_experts": 2},
    ),
    "Granite": ("its logits have a factor, logits_scaling", SIZES | {"logits_scaling": 8.0}),
    "GptOss": ("its attention has sinks", HEADS | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "Mamba": ("its forward takes no past_key_values", {"hidden_size": 32, "num_hidden_layers": 2}),
}
"""Config without its ending -> why the model is slow or, of the last one, refused, and the config's settings."""


def save_family(name: str, folder: Path) -> None:
    """Writes a tiny model of a family over the one in the folder, which keeps its tokenizer."""
    tokenizer = load_tokenizer(str(folder))
    words: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": None}
    settings = dict(FAMILIES[name][1])
    if "text_config" in settings:
        settings["text_config"] = settings["text_config"] | words
        words = {"pad_token_id": 0, "image_token_index": 3, "boi_token_index": 4, "eoi_token_index": 5}
    config = getattr(transformers, f"{name}Config")(**settings, **words, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def refused_by(check: Callable[[], object]) -> str:
    """The reason of a refusal; empty if it passes."""
    try:
        check()
        return ""
    except SleuthError as error:
        return str(error).removeprefix("stage.0 (grpo): ")


@pytest.mark.parametrize("name", FAMILIES)
def test_all_checks_and_training_agree_on_the_way_that_a_model_takes(folder: Path, name: str) -> None:
    save_family(name, folder / "model")
    why, given = FAMILIES[name][0], recipe(folder)
    model, _ = load_model(str(folder / "model"), dtype=None, device="cpu", verified=True)
    [found] = [one for one in findings_of(str(folder / "model")) if one.check == "family"]
    warnings: list[str] = []
    refusals = [
        refused_by(lambda: require_inputs(given, warnings.append)),
        refused_by(lambda: Policy(model, Optimisation(learning_rate=1e-3, steps=1))),
        refused_by(lambda: require_teacher(str(folder / "model"), None, 128)),
    ]
    if name == "Mamba":
        assert (found.level, {f"{found.line}; {found.fix}"}) == ("problem", set(refusals))
        assert why in found.line
        assert "what works: Qwen" in found.fix
        return
    assert refusals == [""] * 3
    assert (found.level, warnings) == (("warning", [found.line]) if why else ("ok", []))
    assert why in found.line
    assert ("rollouts" in found.line) == bool(why and name != "Granite")
    if name in ("Qwen3", "Gemma3", "Lfm2", "Gemma2"):
        notes = plan_for_cpu(given, 8 << 30).notes
        assert notes == ((f"{found.line}; the plan is that of a Qwen 3 of its size",) if why else ())


def test_a_model_that_also_sees_trains_its_words_alone(folder: Path) -> None:
    save_family("Gemma3", folder / "model")
    given = recipe(folder, "stage.0.weight_decay=0.5")
    with RunFolder.open(folder / "run", given) as opened:
        last = run_recipe(given, opened)
    model, _ = load_model(str(last), dtype=None, device="cpu")
    assert not [name for name, weight in model.named_parameters() if "vision" in name and weight.requires_grad]
    before, after = (load_file(place / "model.safetensors") for place in (folder / "model", last))
    assert before.keys() == after.keys()
    assert not [name for name in before if "vision" in name and not before[name].equal(after[name])]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["Gemma3", "Qwen3"])
def test_adapters_are_added_to_the_layers_that_words_reach(folder: Path, name: str) -> None:
    save_family(name, folder / "model")
    model, _ = load_model(str(folder / "model"), dtype=None, device="cpu")
    add_adapters(model, Adapters(rank=2, alpha=4, targets=("q_proj",)), seed=0)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * SIZES["num_hidden_layers"]
    assert not [name for name in trained if "vision" in name]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('stage.0.env.retriever="index"', "stage.0 (grpo): index: no index here; make one with `sleuth index"),
        ('stage.0.data.questions="gone.jsonl"', "gone.jsonl"),
        ('stage.0.env.prompt="gone.txt"', "gone.txt"),
        ('stage.0.env.dialect="slouth"', "sleuth, quoting, search_r1"),
        ('model="runs/nowhere/at/all"', "no such folder"),
        ("stage.0.context=129", "stage.0 (grpo): context = 129 is more than the 128 positions of the model"),
    ],
)
def test_an_input_that_is_not_there_or_does_not_fit_is_named(folder: Path, override: str, said: str) -> None:
    assert said.replace("index:", f"{folder}/index:") in complaint(recipe(folder, override))


def test_a_tokenizer_that_cannot_write_a_tag_is_refused(folder: Path) -> None:
    poor = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=poor, unk_token="?").save_pretrained(folder / "model")
    assert "<think>" in complaint(recipe(folder))


RANDOM_FIRST = """
[[stage]]
kind = "supervised"
steps = 1
rows_per_step = 1
learning_rate = 1e-3
data = { kind = "world_text", people = 200, mix = { reading = 1 } }
init = { layers = 1, width = 8, heads = 1, kv_heads = 1, head_dim = 8, mlp = 8, context = 64 }
"""


def test_a_cache_that_holds_no_sequence_of_a_stage_is_refused_unless_servers_generate(folder: Path) -> None:
    require_inputs(recipe(folder, 'stage.0.cache_memory="64KB"'))
    said = complaint(recipe(folder, 'stage.0.cache_memory="1KB"'))
    assert said.startswith('stage.0 (grpo): cache_memory = "1KB" holds 0 tokens of keys and values, and one sequence')
    assert said.endswith("context = 128, which takes 8.2 kB; raise cache_memory or lower context")
    pool = 'stage.0.engine={ urls = ["http://127.0.0.1:1"] }'
    require_inputs(recipe(folder, 'stage.0.cache_memory="1KB"', pool))


def test_a_context_beyond_the_positions_of_random_weights_is_refused_too(folder: Path) -> None:
    text = (folder / "recipe.toml").read_text().replace(f'model = "{folder}/model"\n', RANDOM_FIRST)
    (folder / "recipe.toml").write_text(text)
    given = load_recipe(folder / "recipe.toml", ['stage.1.env.retriever="empty"'])
    assert complaint(given) == "stage.1 (grpo): context = 128 is more than the 64 positions of the model"


def test_rows_too_long_for_a_turn_are_counted_and_named_or_skipped(folder: Path) -> None:
    asked = [{"id": "1", "question": "Where?", "golden_answers": ["here"]}]
    for number in range(2, 302):  # more than are counted first
        words = 3 if number in (2, 5) else 40
        asked.append({"id": f"q{number}", "question": "1 " * words, "golden_answers": ["x"]})
    write_rows(folder / "questions.jsonl", asked)
    assert complaint(recipe(folder)) == (
        "stage.0 (grpo): row 3 ('q3'), row 4 ('q4'), row 6 ('q6'), row 7 ('q7'), row 8 ('q8') and 293 more of 301: "
        "a prompt of 83 tokens and turn_tokens = 64 do not fit in context = 128; "
        'raise context, lower env.turn_tokens, or set data.too_long = "skip"'
    )
    kept = require_inputs(recipe(folder, 'stage.0.data.too_long="skip"'))[0]
    assert [task.id for task in kept] == ["1", "q2", "q5"]
    first = "stage.0.data.limit=1"
    assert "a prompt of 5 tokens and turn_tokens = 124 " in complaint(
        recipe(folder, "stage.0.env.turn_tokens=124", first)
    )
    require_inputs(recipe(folder, "stage.0.env.turn_tokens=123", first))
    said = complaint(recipe(folder, 'stage.0.data.too_long="skip"', "stage.0.env.turn_tokens=126", first))
    assert said == 'stage.0 (grpo): all 1 rows are too long for context = 128, and data.too_long = "skip"'


def test_malformed_rows_are_counted_and_the_first_five_named(folder: Path) -> None:
    with (folder / "questions.jsonl").open("a") as file:
        file.write('{"id": "2"}\n' * 6 + '{"id": "1", "question": "Where?", "golden_answers": ["x"]}\n')
    with pytest.raises(SleuthError) as caught:
        require_inputs(recipe(folder))
    places = [f"stage.0 (grpo): {folder}/questions.jsonl:{row}: no `question`; the row has id" for row in range(2, 7)]
    more = f"{folder}/questions.jsonl: 7 of 8 rows have a problem"
    assert list(caught.value.args[:5]) == places
    assert caught.value.args[5].startswith(f"stage.0 (grpo): {more}")


EVALUATION = """
[[stage]]
kind = "evaluate"
name = "base"
data = {{ questions = "{folder}/other.jsonl" }}
"""


def test_an_evaluation_is_checked_in_the_env_and_context_of_the_stage_before_it(folder: Path) -> None:
    question = {"id": "long", "question": "1 " * 90, "golden_answers": ["x"]}
    (folder / "other.jsonl").write_text(json.dumps(question) + "\n")
    with (folder / "recipe.toml").open("a") as file:
        file.write(EVALUATION.format(folder=folder))
    assert complaint(recipe(folder)).startswith("stage.1 (base): row 1 ('long') of 1: a prompt of ")
    assert "stage.1 (base): context = 200" in complaint(recipe(folder, "stage.1.context=200"))


def test_missing_or_damaged_weights_are_refused_before_the_first_step(folder: Path) -> None:
    weights = folder / "model" / "model.safetensors"
    whole = weights.read_bytes()
    for contents in (whole[: len(whole) // 2], b"garbage"):
        weights.write_bytes(contents)
        assert f"{weights}: cannot be read" in complaint(recipe(folder))
    weights.unlink()
    assert f"{folder}/model: no model could be loaded" in complaint(recipe(folder))


def test_questions_both_trained_and_evaluated_are_reported_before_the_run_and_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [{"id": str(at), "question": f"Where is {at}?", "golden_answers": ["here"]} for at in range(4)]
    write_rows(folder / "questions.jsonl", questions[:3])
    write_rows(folder / "asked.jsonl", [questions[2] | {"id": "x", "question": "where is 2"}, questions[3]])
    with (folder / "recipe.toml").open("a") as file:
        file.write(f'[[stage]]\nkind = "evaluate"\nname = "after"\ndata = {{ questions = "{folder}/asked.jsonl" }}\n')
    given = recipe(folder)
    with RunFolder.open(folder / "run", given) as place:
        last = run_recipe(given, place)
        assert place.manifest.read()["overlap"] == [{"train": "grpo", "test": "after", "shared": 1, "of": 2}]
    sentence = "1 of the 2 questions of after are also trained on, in stage grpo"
    assert sentence in capsys.readouterr().err
    assert "1 of the 2 questions of `after` are also trained on" in (last / "README.md").read_text()
