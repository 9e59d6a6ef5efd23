from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sleuth.dialects.refine import REFINERS
from sleuth.recipe import Recipe
from sleuth.runs.model_card import model_card, read_results
from sleuth.runs.protocol import ProtocolCard

Recipes = Callable[..., Recipe]
CHECKPOINT = Path("runs/demo/checkpoints/step-000050")


def card(recipe: Recipe, protocol: ProtocolCard | None = None, **results: dict[str, dict[str, object]]) -> str:
    return model_card(recipe, stage=0, step=50, checkpoint=CHECKPOINT, protocol=protocol, results=results)


def test_the_card_says_what_was_trained_on_what_and_how_to_evaluate_it(recipes: Recipes) -> None:
    text = card(recipes("stage.0.loss.beta=0.001"))
    assert "from `models/tiny`" in text
    assert "step 50 of stage `grpo`" in text
    assert "| `learning_rate` | `0.001` |" in text
    assert "| `loss.beta` | `0.001` |" in text
    assert '| `data.questions` | `"world/train.jsonl"` |' in text
    assert 'kind = "answer"' in text
    assert "sleuth eval runs/demo/checkpoints/step-000050 --questions" in text
    assert "sleuth serve runs/demo/checkpoints/step-000050 --index DIR" in text


def test_the_card_follows_the_recipe(recipes: Recipes) -> None:
    assert "| `learning_rate` | `0.25` |" in card(recipes("stage.0.learning_rate=0.25"))


def test_a_measured_figure_stands_with_its_interval(recipes: Recipes) -> None:
    text = card(recipes(), trained={"em": {"value": 0.8125, "low": 0.7, "high": 0.9, "n": 600}})
    assert "| trained | em | 0.812 | 0.700 to 0.900 | 600 |" in text
    assert "Nothing has been measured yet." not in text


def test_a_missing_figure_is_not_a_zero(recipes: Recipes) -> None:
    text = card(recipes(), trained={"em": {"value": None, "low": None, "high": None, "n": 0}})
    assert "| trained | em | missing | missing to missing | 0 |" in text


def test_a_card_without_measurements_says_so(recipes: Recipes) -> None:
    assert "Nothing has been measured yet." in card(recipes())


def test_the_protocol_is_on_the_card_with_its_prompt_and_hash(recipes: Recipes, protocol: ProtocolCard) -> None:
    text = card(recipes(), protocol)
    assert protocol.hash in text
    assert "    Answer the question.\n    {question}" in text
    assert "| `context` | `512` |" in text
    assert "| `dialect.top_k` | `3` |" in text
    assert r'| `dialect.passage` | `"[{rank}] {title} \| {text}"` |' in text


def test_a_refiners_card_speaks_of_no_search(recipes: Recipes, protocol: ProtocolCard) -> None:
    refiner = protocol.model_copy(update={"dialect": REFINERS["answer_only"], "prompt_role": "raw"})
    text = card(recipes(), refiner)
    assert f"sleuth eval {CHECKPOINT} --questions FILE\n" in text
    assert "At its {question} stand question, reasoning and, in <tool_output>, the tool output." in text
    assert "After a search" not in text


def test_results_are_the_measured_figures_of_the_evaluation_files(tmp_path: Path) -> None:
    em = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}
    contents = {"name": "base", "em": em, "outcomes": {"correct": 5}, "records": []}
    (tmp_path / "base.json").write_text(json.dumps(contents), encoding="utf-8")
    assert read_results(tmp_path) == {"base": {"em": em}}
    assert read_results(tmp_path / "none") == {}


BASE_CARD = """---
license: apache-2.0
---
# A base

```bibtex
@misc{base, title={A base}}
```
"""


def test_licence_and_citations_are_those_of_the_base(recipes: Recipes, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "README.md").write_text(BASE_CARD)
    text = card(recipes(f'model="{tmp_path}/base"'))
    assert "pipeline_tag: text-generation\nlicense: apache-2.0\n" in text  # and no base_model: a folder is none
    assert "is `apache-2.0`; that of the data is its own." in text
    assert "```bibtex\n@misc{base, title={A base}}\n```" in text


def test_a_base_that_states_no_licence_gives_none(recipes: Recipes) -> None:
    text = card(recipes())
    assert "license:" not in text
    assert 'base_model: "models/tiny"\n' in text
    assert "`models/tiny` is not stated on its card" in text


def test_the_card_says_how_far_its_figures_reach_and_what_was_trained_on(recipes: Recipes) -> None:
    overlap = {"train": "grpo", "test": "trained", "shared": 3, "of": 600}
    text = model_card(
        recipes(),
        stage=0,
        step=50,
        checkpoint=CHECKPOINT,
        protocol=None,
        results={"trained": {"em": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 600}}},
        overlaps=[overlap],
    )
    assert "3 of the 600 questions of `trained` are also trained on, in stage `grpo`." in text
    assert "Nothing is claimed for other questions, corpora, languages or prompts." in text


def test_the_card_tells_how_to_ask_the_model_without_sleuth(recipes: Recipes, protocol: ProtocolCard) -> None:
    text = card(recipes(), protocol)
    assert "`vllm serve runs/demo/checkpoints/step-000050`" in text
    assert f"stop at {', '.join(f'`{stop}`' for stop in protocol.dialect.stops)}." in text
