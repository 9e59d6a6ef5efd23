"""Whether thoughts are of use: the arms, what is measured of them, and what is certified."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from continuations import BASE, plain_nll, write_rows
from refusals import refused
from verb import sleuth

from sleuth.cli.pipeline import require_inputs
from sleuth.data.excerpts import plain_tokens
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation.eval_session import NamedModel
from sleuth.evaluation.intervals import Measured
from sleuth.judges.factory import JudgePool
from sleuth.learn.models import load_model
from sleuth.recipe import load_recipe
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.think.tables import PlacesRecipe, ProbeRecipe, ThoughtEnvRecipe
from sleuth.think.thought_arms import GENERIC, build_arms, swap_partners
from sleuth.think.thought_probe import probe_thoughts, verdict
from sleuth.think.thoughts import spots_of, thought_setting, thought_tokens
from sleuth.types import Sampling

Run = Callable[..., Path]
ENV = {"kind": "thought", "thought_tokens": 40}
RECIPE = """
name = "probes"
model = "{model}"
seed = 1

[[stage]]
kind = "probe"
name = "thoughts"
samples = 2
data = {{ kind = "places", texts = "{texts}", limit = 8, suffix_tokens = 6 }}
env = {{ kind = "thought", thought_tokens = 12, suffix_tokens = 5, stops = ["."] }}
judge = "ending"
"""
TEXTS = [
    ("a", "k", " Tamton is a town in Osmark. It rains. The region of Tamton is", " Osmark.", " Tamton is in Osmark"),
    ("b", "l", " Vogrun is a town in Ulmark. It rains. The region of Vogrun is", " Ulmark.", " Vogrun is in Ulmark"),
    ("c", "k", " Ludby is a town in Ravonia. It rains. The region of Ludby is", " Ravonia.", " Ludby is in Ravonia"),
]


@pytest.fixture(scope="module")
def base():
    return load_model(str(BASE), dtype="float32", device="cpu")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = (
        {
            "id": name,
            "text": before + behind,
            "type": kind,
            "thoughts": [{"at": len(before), "text": thought}],
            "golden_answers": [behind.strip(" .")],
        }
        for name, kind, before, behind, thought in TEXTS
    )
    return write_rows(tmp_path / "texts.jsonl", rows)


@pytest.fixture
def recipe(texts: Path, tmp_path: Path) -> Path:
    file = tmp_path / "probes.toml"
    file.write_text(RECIPE.format(model=BASE, texts=texts))
    return file


def arms(base, texts: Path, script: Callable[[str, Sampling], str]):
    _, tokenizer = base
    renderer = Renderer(tokenizer)
    data = PlacesRecipe.model_validate({"kind": "places", "texts": texts, "suffix_tokens": 6})
    setting = thought_setting(ThoughtEnvRecipe.model_validate(ENV), tokenizer)
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, script), renderer=renderer, context=300, temperature=1.0, key=(0,)
    )
    spots = spots_of(data, tokenizer)
    return spots, build_arms(rollout, setting, spots, samples=2, renderer=renderer), renderer


def names_the_text(text: str, sampling: Sampling) -> str:
    """A thought that names its text, its position and its sample."""
    town = text.split()[0]
    return f" {town} so{' so' * sampling.key[-2]}</think>"


def test_each_arm_puts_its_own_thought_at_the_same_spot(base, texts: Path) -> None:
    spots, found, renderer = arms(base, texts, names_the_text)
    first = spots[0]

    def context(thought: str) -> tuple[int, ...]:
        return (*first.prefix, *thought_tokens(thought, renderer))

    contexts = {name: arm[0] for name, arm in found.contexts.items()}
    assert found.thoughts[0] == [" Tamton so", " Tamton so so"]
    assert contexts["sampled"] == [context(" Tamton so"), context(" Tamton so so")]
    assert contexts["blank"] == [context("")]
    assert contexts["generic"] == [context(sentence) for sentence in GENERIC]
    assert contexts["swapped"] == [context(" Ludby so"), context(" Ludby so so")]  # b is of another kind
    assert contexts["teacher"] == [context(TEXTS[0][4])]


def test_swapped_thoughts_come_from_other_documents(base, texts: Path) -> None:
    spots, _, _ = arms(base, texts, names_the_text)
    tasks = [spot.task for spot in spots]
    assert swap_partners(tasks) == [2, 2, 0]
    assert swap_partners(tasks[:1]) == [None]
    assert swap_partners([tasks[0], tasks[0]]) == [None, None]


def test_figures_are_those_of_plain_forward_passes(base, texts: Path, tmp_path: Path) -> None:
    model, tokenizer = base
    data = {"kind": "places", "texts": texts, "suffix_tokens": 6}
    stage = ProbeRecipe.model_validate({"kind": "probe", "name": "thoughts", "samples": 2, "data": data, "env": ENV})
    with JudgePool(tmp_path / "v.sqlite") as judge_pool:
        found = probe_thoughts(stage, NamedModel(name="m", model=model, tokenizer=tokenizer), judge_pool)
    renderer = Renderer(tokenizer)
    spots = spots_of(stage.data, tokenizer)

    def nll(at: int, thought: str) -> float:
        return plain_nll(model, (*spots[at].prefix, *thought_tokens(thought, renderer)), spots[at].suffix)

    blank, teacher = ([nll(at, thought(at)) for at in range(3)] for thought in (lambda at: "", lambda at: TEXTS[at][4]))
    generic = [sum(nll(at, thought) for thought in GENERIC) / len(GENERIC) for at in range(3)]
    assert found["blank_nll"]["value"] == pytest.approx(sum(blank) / 3, abs=1e-4)
    assert found["gain_teacher"]["value"] == pytest.approx((sum(blank) - sum(teacher)) / 3, abs=1e-4)
    assert found["gain_generic"]["value"] == pytest.approx((sum(blank) - sum(generic)) / 3, abs=1e-4)
    own = [sum(record["nll"]["sampled"]) / 2 for record in found["records"]]
    assert found["over_generic"]["value"] == pytest.approx((sum(generic) - sum(own)) / 3, abs=1e-4)
    assert found["over_blank"]["value"] == pytest.approx(found["gain_sampled"]["value"], abs=1e-9)
    assert found["over_generic"]["n"] == 3  # documents, and not samples
    assert found["gained_share"]["value"] == pytest.approx(1 - sum(own) / sum(blank), abs=1e-4)
    assert not any(name.startswith("right") for name in found)


def test_held_out_thoughts_are_measured_of_a_model_that_was_never_trained(base, texts: Path, tmp_path: Path) -> None:
    model, tokenizer = base
    data, held_out = {"kind": "places", "texts": texts, "suffix_tokens": 6}, {"texts": texts, "limit": 2}
    table = {"kind": "probe", "name": "thoughts", "samples": 2, "data": data, "env": ENV}
    with JudgePool(tmp_path / "v.sqlite") as judge_pool:
        plain, found = (
            probe_thoughts(
                ProbeRecipe.model_validate(table | more),
                NamedModel(name="m", model=model, tokenizer=tokenizer),
                judge_pool,
            )
            for more in ({}, {"held_out": held_out})
        )
    renderer = Renderer(tokenizer)
    nlls = [
        plain_nll(model, plain_tokens(renderer, before), thought_tokens(thought, renderer))
        for _, _, before, _, thought in TEXTS[:2]
    ]
    assert found["thought_nll"]["value"] == pytest.approx(sum(nlls) / 2, abs=1e-4)
    assert found["thought_nll"]["n"] == 2
    assert "thought_nll" not in plain
    assert plain.items() <= found.items()  # and nothing else is measured otherwise


def test_a_certificate_requires_the_whole_interval_over_each_control_to_be_above_zero() -> None:
    clear, unclear = (Measured(value=0.3, low=low, high=0.6, n=40) for low in (0.01, 0.0))
    beaten = {"blank": clear, "generic": clear, "swapped": clear}
    controls = "an empty one, phrases that fit any text and thoughts of other texts"
    assert verdict(beaten) == (
        True,
        f"its own thoughts beat {controls}, by what they make of the true suffix, on 40 documents",
    )
    assert verdict(dict.fromkeys(beaten, unclear))[1].startswith(f"its own thoughts are not shown to beat {controls},")
    words = {"blank": "an empty one", "generic": "phrases that fit any text", "swapped": "thoughts of other texts"}
    for lost, what in words.items():
        passes, claim = verdict(beaten | {lost: unclear})
        assert not passes
        assert claim.startswith(f"its own thoughts are not shown to beat {what},")
    assert not verdict({"blank": clear, "generic": clear})[0]  # there was no thought to swap


def test_a_stage_writes_figures_records_and_the_certificate_once(run: Run, recipe: Path, tmp_path: Path) -> None:
    before = sorted(BASE.iterdir())
    run(recipe, tmp_path / "run")
    assert sorted(BASE.iterdir()) == before  # a model that is measured stays as it is
    found = json.loads((tmp_path / "run" / "eval" / "thoughts.json").read_text())
    assert {"over_blank", "over_generic", "over_swapped", "over_teacher"} <= found.keys()
    assert found["right_teacher"].keys() == {"value", "low", "high", "n"}
    assert len(found["records"]) == 3
    assert all(len(record["right"]["generic"]) == 2 for record in found["records"])
    assert found["certificate"]["over_blank"] == found["over_blank"]
    before = (tmp_path / "run" / "eval" / "thoughts.json").stat().st_mtime_ns
    run(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "eval" / "thoughts.json").stat().st_mtime_ns == before


def test_the_verb_prints_a_line_an_arm_and_keeps_the_certificate(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = sleuth("probe-thoughts", BASE, recipe, "--out", out)
    assert done.exit_code == 0, done.output
    for word in ("sampled", "generic", "swapped", "teacher", "No certificate:"):
        assert word in done.stdout
    assert json.loads(out.read_text())["certificate"]["passes"] is False
    figures = json.loads(sleuth("probe-thoughts", BASE, recipe, "--limit", 2, "--json").stdout)
    assert figures["over_blank"]["n"] == 2
    assert "records" not in figures


def test_a_probe_that_cannot_run_is_refused_before_the_first_step(recipe: Path, texts: Path) -> None:
    require_inputs(load_recipe(recipe))
    assert "only one document; swapping thoughts needs two or more" in refused(recipe, "stage.0.data.limit=1")
    assert "positions of the model" in refused(recipe, "stage.0.env.thought_tokens=2000")
    assert "held_out.row_tokens = 2000 is more than the 1024 positions of the model" in refused(
        recipe, f'stage.0.held_out={{texts="{texts}", row_tokens=2000}}'
    )
    assert "judge and env.suffix_tokens need each other" in refused(
        recipe, "stage.0.env.suffix_tokens=0", "stage.0.env.stops=[]"
    )
    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    write_rows(texts, (row | {"golden_answers": []} for row in rows))
    assert "text 'a' has no golden_answers" in refused(recipe)


def test_a_thought_that_was_never_closed_is_closed_by_the_probe(base, texts: Path) -> None:
    _, found, renderer = arms(base, texts, lambda text, sampling: " so" * 40)
    closing = renderer.tokenizer.convert_tokens_to_ids("</think>")
    assert all(context is not None and context[-1] == closing for context in found.contexts["sampled"][0])
