from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import process_time

import huggingface_hub
import pytest
import yaml

from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.intervals import share
from sleuth.evaluation.paired import measured_tables
from sleuth.host import cards
from sleuth.host.cards import card_of, fetch_card, prepare_card
from sleuth.recipe import Recipe
from sleuth.runs.model_card import client_part, model_card

Recipes = Callable[..., Recipe]
CHECKPOINT = Path("runs/demo/checkpoints/step-000050")


def card(recipe: Recipe, protocol: ProtocolCard | None = None, evaluations: Path = Path("none")) -> str:
    tables = measured_tables(evaluations)
    return model_card(recipe, stage=0, step=50, checkpoint=CHECKPOINT, protocol=protocol, measured=tables)


def write(folder: Path, **evaluations: dict[str, object]) -> Path:
    for name, contents in evaluations.items():
        (folder / f"{name}.json").write_text(json.dumps(contents), encoding="utf-8")
    return folder


def asked(*right: float | None) -> dict[str, object]:
    """An evaluation of one question for each."""
    known = [one for one in right if one is not None]
    records = [{"id": f"q{at}", "em": em} for at, em in enumerate(right)]
    return {"name": "x", "em": share(known).as_json(), "outcomes": {"correct": 5}, "records": records}


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


def test_a_client_is_told_to_append_passages_or_sentences_of_them(protocol: ProtocolCard) -> None:
    reading = protocol.model_copy(update={"dialect": DIALECTS["reading"]})
    assert "append the 3 best passages as the protocol wraps them, and go on" in client_part(protocol)
    said = "append the 4 best sentences, by shared words, of the 3 best passages as the protocol wraps them, and go on"
    assert said in client_part(reading)


def test_base_and_trained_stand_beside_each_other_with_their_paired_difference(
    recipes: Recipes, tmp_path: Path
) -> None:
    # 10 questions: 2 gained, none lost, of which one is not measured before.
    write(tmp_path, base=asked(*[0.0] * 8, 1.0, None), trained=asked(*[0.0] * 6, *[1.0] * 4))
    gate = {"no_signal": {"value": 0.25, "low": 0.1, "high": 0.5, "n": 8}}
    lines = card(recipes(), evaluations=write(tmp_path, gate=gate)).splitlines()
    at = lines.index("| figure | base | trained | difference | n |")
    assert (
        lines[at + 2] == "| Exact match | 0.111 [0.02, 0.43] | 0.400 [0.17, 0.69] | +0.222 [+0.00, +0.56] | 9 and 10 |"
    )
    assert "| figure | gate | n |" in lines[at:]  # a table of its own: it has no figure of these
    assert "| Groups without signal | 0.250 [0.10, 0.50] | 8 |" in lines[at:]


def test_a_suite_has_a_row_for_each_set_and_its_means_but_none_for_each_figure_of_each_set(
    recipes: Recipes, tmp_path: Path
) -> None:
    sets = [f"set{at}" for at in range(7)]
    for name, right in (("base", 0.0), ("trained", 1.0)):
        of_sets = {one: asked(right, right) | {"set": {"name": one}} for one in sets}
        suite = {"sets": {one: {"em": of_set["em"]} for one, of_set in of_sets.items()}}
        more = {key: {"value": 0.5, "low": 0.4, "high": 0.6, "n": 14} for key in ("em", "f1", "searches_mean")}
        write(tmp_path, **{f"{name}@{one}": of_set for one, of_set in of_sets.items()}, **{name: suite | more})
    text = card(recipes(), evaluations=tmp_path)
    rows = [line for line in text.partition("## Measured")[2].partition("##")[0].splitlines() if line.startswith("|")]
    assert rows[0] == "| figure | test set | base | trained | difference | n |"
    assert rows[2] == "| Exact match | set0 | 0.000 [0.00, 0.66] | 1.000 [0.34, 1.00] | +1.000 [+1.00, +1.00] | 2 |"
    assert [row.split(" | ")[:2] for row in rows[9:]] == [
        ["| Exact match", "mean of 7"],
        ["| F1 of the answer's words", "mean of 7"],
        ["| Searches", "mean of 7"],
    ]


def test_the_protocol_is_on_the_card_with_its_prompt_and_hash(recipes: Recipes, protocol: ProtocolCard) -> None:
    text = card(recipes(), protocol)
    assert protocol.hash in text
    assert "    Answer the question.\n    {question}" in text
    assert "| `context` | `512` |" in text
    assert "| `dialect.top_k` | `3` |" in text
    assert r'| `dialect.passage` | `"[{rank}] {title} \| {text}"` |' in text


BASE_CARD = """---
license: other
license_name: qwen-research
license_link: https://example.org/LICENSE
datasets:
- owner/texts
tags: [chat, "1.0"]
---
# A base

```
@misc{base, title={A base}}
```
"""


def with_base(tmp_path: Path, card: str) -> str:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "README.md").write_text(card)
    return f'model="{tmp_path}/base"'


def test_licence_data_sets_tags_and_citations_are_those_of_the_base(recipes: Recipes, tmp_path: Path) -> None:
    text = card(recipes(with_base(tmp_path, BASE_CARD)))
    front = yaml.safe_load(text.split("---")[1])
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "other",
        "license_name": "qwen-research",
        "license_link": "https://example.org/LICENSE",
        "datasets": ["owner/texts"],
        "tags": [
            *("sleuth", "grpo", "reinforcement-learning", "search-agent", "retrieval-augmented-generation"),
            *("chat", "1.0"),
        ],
    }
    assert "is `qwen-research` (https://example.org/LICENSE). That of the data is its own." in text
    assert "```bibtex\n@misc{base, title={A base}}\n```" in text


@pytest.mark.parametrize(
    ("dialect", "cited", "not_cited"),
    [
        ("search_r1", ["2402.03300", "2503.09516"], ["2503.19470", "slime"]),
        ("slime", ["2503.09516", "github.com/THUDM/slime"], ["2503.19470"]),
        ("research_card", ["2503.19470"], ["2503.09516"]),
        ("sleuth", ["2402.03300"], ["2503.09516", "2503.19470", "slime"]),
    ],
)
def test_what_a_recipe_follows_is_cited(recipes: Recipes, dialect: str, cited: list[str], not_cited: list[str]) -> None:
    text = card(recipes(f'stage.0.env.dialect="{dialect}"', 'stage.0.loss.advantage="grpo"'))
    rights = text.partition("## Licence and citations")[2]
    assert all(source in rights for source in cited)
    assert not any(source in rights for source in not_cited)


def test_a_data_set_of_the_hub_stands_with_the_licence_that_its_card_states(
    recipes: Recipes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-sa-4.0\n---\n")
    monkeypatch.setattr(cards, "_in_cache", lambda name, kind: str(tmp_path / "README.md") if name == "o/qa" else None)
    text = card(recipes('stage.0.data.questions="hf://o/qa/train.parquet"'))
    assert yaml.safe_load(text.split("---")[1])["datasets"] == ["o/qa"]
    assert "| `grpo` | `hf://o/qa/train.parquet` | `cc-by-sa-4.0` |" in text
    assert "| `grpo` | `world/train.jsonl` | not known: a file of the run's owner |" in card(recipes())


@pytest.mark.parametrize(
    ("contents", "licence"),
    [
        (None, "not known: its card is not here"),
        ("# A base\n", "not stated on its card"),
        ("---\nlicense:\n---\n", "not stated on its card"),
        ("---\nlicense: [apache-2.0, mit]\n---\n", "`apache-2.0`"),
        ("---\nlicense: {a: 1}\n---\n", "not stated on its card"),
        ("---\nlicense: apache-2.0\n\ttags: x\n---\n", "README.md is no YAML of keys and values"),
        ("---\n- license\n---\n", "README.md is no YAML of keys and values"),
        ("---\nlicense: 2024-99-99\n---\n", "README.md is no YAML of keys and values"),
    ],
)
def test_a_base_without_a_readable_licence_says_why_and_loses_nothing_else(
    recipes: Recipes, tmp_path: Path, contents: str | None, licence: str
) -> None:
    cited = "```bibtex\n@misc{base}\n```\n"
    model = with_base(tmp_path, contents + cited) if contents is not None else 'model="models/tiny"'
    text = card(recipes(model))
    [line] = [line for line in text.splitlines() if line.startswith("The licence of the base")]
    assert licence in line
    assert ("license:" in text.split("---")[1]) is licence.startswith("`")
    assert (cited in text) is (contents is not None)
    assert yaml.safe_load(text.split("---")[1])["tags"][0] == "sleuth"


def test_a_strangers_card_is_read_in_linear_time(tmp_path: Path) -> None:
    with_base(tmp_path, "```bibtex\n@misc{\n" * 10_000 + "```\n")
    start = process_time()
    assert card_of(str(tmp_path / "base")).citations == ("@misc{",)
    assert process_time() - start < 2  # 20 seconds if each fence is searched to the end of the card


@pytest.mark.parametrize("tag", ["\U0001f917 of all", '"\\x7f"', '"a: b"', '"null"'])
def test_tags_stay_what_they_are_in_the_front_matter(recipes: Recipes, tmp_path: Path, tag: str) -> None:
    text = card(recipes(with_base(tmp_path, f"---\ntags: [{tag}]\n---\n")))
    assert yaml.safe_load(text.split("---")[1])["tags"][5:] == [yaml.safe_load(tag)]


@pytest.mark.parametrize("front", ["- license", 'license: !!int ""'])
def test_front_matter_that_cannot_be_read_is_one_line_when_the_model_is_loaded(tmp_path: Path, front: str) -> None:
    with_base(tmp_path, f"---\n{front}\n---\n")
    said: list[str] = []
    prepare_card(str(tmp_path / "base"), said.append)
    [line] = said
    assert "is no YAML of keys and values: cards of checkpoints will not state the licence" in line


@pytest.mark.parametrize("has_card", [False, True])
def test_the_card_of_a_hub_model_is_fetched_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_card: bool
) -> None:
    cache: dict[str, str] = {}

    def download(repository: str, file: str, *, repo_type: str) -> str:
        if not has_card:
            raise ConnectionError("no route\nto the hub")
        (tmp_path / file).write_text("---\nlicense: mit\n---\n")
        return cache.setdefault(repository, str(tmp_path / file))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(cards, "_in_cache", lambda name, kind: cache.get(name))
    said: list[str] = []
    fetch_card("owner/base", "model", said.append)
    assert card_of("owner/base").licence == ("mit" if has_card else None)
    lost = "owner/base: its card could not be fetched, so its licence will not be stated: no route to the hub"
    assert said == ([] if has_card else [lost])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    if has_card:
        fetch_card("owner/base", "model", said.append)
        assert said == []


def test_the_card_says_how_far_its_figures_reach_and_what_was_trained_on(recipes: Recipes) -> None:
    overlap = {"train": "grpo", "test": "trained", "shared": 3, "of": 600}
    text = model_card(
        recipes(),
        stage=0,
        step=50,
        checkpoint=CHECKPOINT,
        protocol=None,
        measured=[[("figure", "trained", "n"), ("Exact match", "0.500 [0.40, 0.60]", "600")]],
        overlaps=[overlap],
    )
    assert "3 of the 600 questions of `trained` are also trained on, in stage `grpo`." in text
    assert "Nothing is claimed for other questions, corpora, languages or prompts." in text


def test_the_card_tells_how_to_ask_the_model_without_sleuth(recipes: Recipes, protocol: ProtocolCard) -> None:
    text = card(recipes(), protocol)
    assert "`vllm serve runs/demo/checkpoints/step-000050`" in text
    assert f"stop at {', '.join(f'`{stop}`' for stop in protocol.dialect.stops)}." in text
