"""Loading a model folder: missing or damaged parts are refused in one line, never filled in."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from verb import write_rows

from sleuth.answers.factory import scorer_warnings
from sleuth.answers.scorers import SCORERS
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.setting import Setting
from sleuth.learn.models import add_tokens, context_of, load_model, load_outline, random_model
from sleuth.recipe.rewards import ScorerName
from sleuth.recipe.training import InitRecipe
from sleuth.render import load_tokenizer
from sleuth.retrieval.bm25 import build_index
from sleuth.search.setting import retriever_of, search_setting
from sleuth.search.tables import SearchEnvRecipe
from sleuth.types import SleuthError, Task

BASE = Path(__file__).parents[1] / "models" / "tiny-base"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE, tmp_path / "model"))


def test_weights_that_lack_a_parameter_are_refused_not_filled_with_random_numbers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SleuthError, match=r"lack 1 of the model's parameters, such as model\.norm\.weight"):
        load_model(str(folder), dtype="float32", device="cpu")


@pytest.mark.parametrize("has_generation_config", [True, False])
def test_the_outline_of_a_model_is_that_of_its_weights(folder: Path, has_generation_config: bool) -> None:
    if not has_generation_config:
        (folder / "generation_config.json").unlink()
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    (folder / "model.safetensors").unlink()
    outline = load_outline(str(folder))
    assert outline.eos_ids == LocalEngine(model, tokenizer, slots=1, context=8)._eos_ids
    assert outline.context == context_of(model)
    (folder / "config.json").unlink()
    with pytest.raises(SleuthError, match="no model's config could be read from this folder or hub id"):
        load_outline(str(folder))


def test_a_recipe_can_name_every_scorer() -> None:
    assert get_args(ScorerName) == tuple(SCORERS)


def test_a_stage_searches_with_the_retriever_of_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "\\"Tarn\\"\\nA town."}\n')
    card = build_index(tmp_path / "c.jsonl", tmp_path / "index")
    common = {"kind": "search", "dialect": "search_r1", "prompt": "plain"}
    retriever, corpus, identity = retriever_of(SearchEnvRecipe(**common, index=tmp_path / "index"), [])
    assert (corpus, identity) == (card.corpus_sha256, card.retriever)
    assert [p.id for p in asyncio.run(retriever.search(["town"], 3))[0]] == ["1"]
    assert retriever_of(SearchEnvRecipe(**common, retriever="empty"), [])[1:] == (None, None)
    nowhere = SearchEnvRecipe(**common, retriever="remote", urls=("http://127.0.0.1:9",))
    with pytest.raises(SleuthError, match=r"http://127\.0\.0\.1:9 does not answer"):
        retriever_of(nowhere, [])


def test_a_scorer_is_checked_on_the_prompt_as_the_chat_template_renders_it() -> None:
    tokenizer = load_tokenizer(str(BASE))

    def warnings(prompt: str, role: Literal["raw", "system"]) -> list[str]:
        env = SearchEnvRecipe(kind="search", dialect="research", prompt=prompt, prompt_role=role, retriever="empty")
        return scorer_warnings(["research"], search_setting(env, tokenizer, []))

    assert warnings("research_rules", "system") == []  # the template ends with the assistant's marker
    [told] = warnings("plain", "raw")
    assert "would pay a well-formed right answer 0" in told


def gold_tasks(*gold: Sequence[str]) -> list[Task]:
    return [
        Task(id=f"q{at}", question="Who?", golden_answers=("Ada",), gold_passages=tuple(ids))
        for at, ids in enumerate(gold)
    ]


def shown_to(setting: Setting, task: Task) -> list[str]:
    """The ids of the passages that a search of any words shows."""
    env = setting.env(task)
    asyncio.run(env.open())
    reply = asyncio.run(env.reply("<search>mayor</search>", "stop"))
    assert reply.action is not None
    return [passage.id for passage in reply.action.passages]


def test_the_gold_arm_shows_the_passages_that_the_row_names(tmp_path: Path) -> None:
    passages = [{"id": f"p{at}", "contents": f'"Town {at}"\nIts mayor is Ada.'} for at in range(5)]
    write_rows(tmp_path / "corpus.jsonl", passages)
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    env = SearchEnvRecipe(kind="search", dialect="sleuth", prompt="plain", retriever="gold", index=tmp_path / "index")
    tasks = gold_tasks(["p2"], ["p4", "p0"], ["p4", "p3", "p2", "p1"], ["p0", "elsewhere", "p0"])
    setting = search_setting(env, None, tasks)
    assert [shown_to(setting, task) for task in tasks] == [["p2"], ["p4", "p0"], ["p4", "p3", "p2"], ["p0"]]
    first = search_setting(env.model_copy(update={"top_k": 1}), None, tasks)
    assert [shown_to(first, task) for task in tasks] == [["p2"], ["p4"], ["p4"], ["p0"]]
    for lost in (["elsewhere"], []):
        with pytest.raises(
            SleuthError, match=r"1 of 2 questions have no gold_ids that are in .*, such as question 'q1'"
        ):
            search_setting(env, None, gold_tasks(["p0"], lost))


def test_an_added_token_is_one_token_and_its_embedding_is_distributed_as_the_others(folder: Path) -> None:
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    other, _ = load_model(str(folder), dtype="float32", device="cpu")
    words, before = len(tokenizer), model.get_input_embeddings().weight.detach().clone()
    tags = [f"<tag{number}>" for number in range(200)]
    assert add_tokens(model, tokenizer, [*tags, " wrote"]) == tags
    assert tokenizer.encode("<tag0><tag1>", add_special_tokens=False) == [words, words + 1]
    assert tokenizer.decode([words, words + 1]) == "<tag0><tag1>"
    after = model.get_input_embeddings().weight.detach()
    assert after.shape == (words + 200, before.shape[1]) == model.get_output_embeddings().weight.shape
    assert torch.equal(after[:words], before)
    assert model.config.vocab_size == words + 200
    torch.testing.assert_close(after[words:].mean(dim=0), before.mean(dim=0), atol=0.05, rtol=0)
    assert after[words:].std().item() == pytest.approx(before.std().item(), rel=0.05)
    torch.manual_seed(7)
    add_tokens(other, load_tokenizer(str(folder)), [*tags, " wrote"])
    assert torch.equal(other.get_input_embeddings().weight, after)  # the same every time


def test_a_model_with_spare_rows_in_its_vocabulary_keeps_its_size(folder: Path) -> None:
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    model.resize_token_embeddings(len(tokenizer) + 64, mean_resizing=False)
    add_tokens(model, tokenizer, ["<snippet id="])
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) + 63


def test_untied_input_and_output_embeddings_both_get_the_token(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    init = InitRecipe(layers=1, width=8, heads=1, kv_heads=1, head_dim=8, mlp=8, context=16)
    model = random_model(init, tokenizer, seed=0)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(2 * model.lm_head.weight.detach())
    add_tokens(model, tokenizer, ["</snippet>"])
    assert len(model.get_input_embeddings().weight) == len(model.get_output_embeddings().weight) == len(tokenizer)
    assert not torch.equal(model.get_input_embeddings().weight[-1], model.get_output_embeddings().weight[-1])
