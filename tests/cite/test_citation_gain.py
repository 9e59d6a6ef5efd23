"""The gain of a cited snippet to the claim that cites it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from continuations import plain_nll
from transformers import PreTrainedModel
from verb import sleuth

from sleuth.cite.citation_gain import CitationCredit, citation_gains
from sleuth.cite.env import RefineSetting, refine_setting
from sleuth.cite.tables import CitationGainRecipe, RefineEnvRecipe
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.evaluation import eval_session
from sleuth.learn.models import load_model
from sleuth.learn.policy import TokenBudget
from sleuth.ranks import ALONE
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.probe import probe
from sleuth.types import Episode, Evidence, Group, Passage, Score, Task

BASE = Path(__file__).parents[2] / "models" / "tiny-reader"
SNIPPETS = (
    Passage(id="a1", title="", text="Hedan Verridge was born in Hinheim."),
    Passage(id="b2", title="", text="Morburg is a town in Tersia."),
)
OUTPUT = "\n".join(f"<snippet id={one.id}>{one.text}</snippet>" for one in SNIPPETS)
TASK = Task(
    id="q",
    question="Where was Hedan Verridge born?",
    golden_answers=("Hinheim",),
    evidence=Evidence(reasoning="", output=OUTPUT, snippets=SNIPPETS),
)
ANSWER = (
    "<answer><snippet id=a1>Hedan Verridge was born in Hinheim.</snippet> So <snippet id=z9>it is</snippet></answer>"
)


def refined(
    task: Task, *answers: str, mode: str = "answer_only"
) -> tuple[PreTrainedModel, Renderer, RefineSetting, list[Episode]]:
    """The tiny reader, and an episode of the task for each answer."""
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    recipe = RefineEnvRecipe.model_validate({"kind": "refine", "turn_tokens": 120, "mode": mode})
    setting, renderer, told = refine_setting(recipe, tokenizer, [task]), Renderer(tokenizer), iter(answers)
    engine = ScriptedEngine(tokenizer, lambda text, sampling: next(told))
    rollout = Rollout(engine=engine, renderer=renderer, context=1000, temperature=0.0, key=(0,))
    episodes = [asyncio.run(rollout.episode(setting.env(task), task, 0, at)) for at in range(len(answers))]
    return model, renderer, setting, episodes


def test_the_gain_of_a_snippet_is_the_log_probability_of_the_claim_with_its_words_minus_without() -> None:
    model, renderer, setting, [episode] = refined(TASK, ANSWER)
    tokenizer = renderer.tokenizer
    [[gold, other, invented]] = citation_gains(model, renderer, setting, [episode], budget=2048)
    assert [(one.snippet, one.cited, one.number) for one in (gold, other)] == [("a1", True, 0), ("b2", False, 0)]
    assert (invented.snippet, invented.cited, invented.number, invented.value) == ("z9", True, 1, 0.0)
    assert gold.claim == other.claim == "Hedan Verridge was born in Hinheim."

    answer = list(episode.trajectory.segments[-1].tokens)
    texts = [
        tokenizer.backend_tokenizer.decode(answer[:at], skip_special_tokens=False) for at in range(len(answer) + 1)
    ]
    begin, end = ANSWER.index("Hedan"), ANSWER.index("</snippet>")
    claim = [at for at in range(len(answer)) if len(texts[at]) < end and len(texts[at + 1]) > begin]
    assert len(claim) == gold.tokens

    def plain(output: str) -> float:
        bare = replace(TASK, evidence=Evidence(reasoning="", output=output, snippets=SNIPPETS))
        prompt = renderer.render_all(asyncio.run(setting.env(bare).open()).pieces)
        before = [token for segment in prompt for token in segment.tokens]
        nll = plain_nll(model, (*before, *answer[: claim[0]]), answer[claim[0] : claim[-1] + 1])
        return -len(claim) * nll

    for gain, snippet in zip((gold, other), SNIPPETS, strict=True):
        expected = plain(OUTPUT) - plain(OUTPUT.replace(snippet.text, ""))
        assert gain.value == pytest.approx(expected, abs=1e-3)
        assert gain.value != 0


def test_the_gain_includes_the_thought_from_which_the_claim_was_copied() -> None:
    """A snippet that another claim cites is not compared, since the thought is about that claim too."""
    thought = "<think>Verridge of Hinheim, Morburg of Tersia</think>"
    claims = ("Hedan Verridge was born in Hinheim.", "Morburg is a town in Tersia.")
    answer = "".join(f"<snippet id={id_}>{claim}</snippet>" for id_, claim in zip(("a1", "b2"), claims, strict=True))
    told = thought + "<answer>" + answer + "</answer>"
    snippets = (*SNIPPETS, Passage(id="c3", title="", text="Hedan Verridge wrote The Last Harbour."))
    output = "\n".join(f"<snippet id={one.id}>{one.text}</snippet>" for one in snippets)
    task = replace(TASK, evidence=Evidence(reasoning="", output=output, snippets=snippets))
    model, renderer, setting, [episode] = refined(task, told, mode="thinking")
    [found] = citation_gains(model, renderer, setting, [episode], budget=2048)
    assert [(one.number, one.claim, one.snippet, one.cited) for one in found] == [
        (0, claims[0], "a1", True),
        (0, claims[0], "c3", False),
        (1, claims[1], "b2", True),
        (1, claims[1], "c3", False),
    ]
    thought_tokens = len(renderer.tokenizer(thought.removesuffix("</think>"), add_special_tokens=False)["input_ids"])
    claim_tokens = len(renderer.tokenizer(claims[0], add_special_tokens=False)["input_ids"])
    assert found[0].tokens == thought_tokens + claim_tokens


def credit_of(
    recipe: CitationGainRecipe, model: PreTrainedModel, renderer: Renderer, setting: RefineSetting
) -> CitationCredit:
    """The hook that gives credit for citations, in one process."""
    stage, context = SimpleNamespace(sampling=SimpleNamespace(temperature=1.0)), SimpleNamespace(ranks=ALONE)
    worker = SimpleNamespace(stage=stage, context=context, renderer=renderer, setting=setting)
    return CitationCredit(recipe, cast(Any, SimpleNamespace(worker=worker, model=model, budget=TokenBudget(2048))))


def test_citations_above_the_margin_get_the_bonus_and_others_the_penalty() -> None:
    """The credit covers the tokens of the tag and its claim, in answers that have a score."""
    right = "<answer>Well, <snippet id=a1>Hedan Verridge was born in Hinheim.</snippet></answer>"
    wrong = right.replace("a1", "b2")
    told = (right, wrong, wrong, "<answer>Nobody knows.</answer>")
    model, renderer, setting, episodes = refined(TASK, *told)
    missing = Score(value=None, note="the judge is gone")
    scores = (Score(value=0.0), Score(value=0.0), missing, Score(value=1.0))
    groups = [Group(task=TASK, episodes=tuple(episodes), scores=scores)]
    of_right, of_wrong, *_ = citation_gains(model, renderer, setting, episodes, budget=2048)
    gains = [next(one.value for one in found if one.cited) for found in (of_right, of_wrong)]
    recipe = CitationGainRecipe(kind="citation_gain", margin=max(0.0, sum(gains) / 2), bonus=0.5, penalty=0.25)
    assert gains[1] <= recipe.margin < gains[0]
    [credited], figures = credit_of(recipe, model, renderer, setting).score(1, groups)
    assert [[credit.value for credit in score.credits] for score in credited.scores] == [[0.5], [-0.25], [], []]
    assert figures == {"citation_gain": pytest.approx(sum(gains) / 2, abs=1e-4), "idle_citations": 0.5}
    [credit] = credited.scores[0].credits
    tokens = list(episodes[0].trajectory.segments[credit.segment].tokens[credit.begin : credit.end])
    text = renderer.tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=False)
    assert text.strip() == "<snippet id=a1>Hedan Verridge was born in Hinheim.</snippet>"


def test_a_refiners_probe_separates_cited_from_other_snippets(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    setting = refine_setting(RefineEnvRecipe.model_validate({"kind": "refine", "turn_tokens": 120}), tokenizer, [TASK])
    script = ScriptedEngine(tokenizer, lambda text, sampling: ANSWER)
    monkeypatch.setattr(eval_session.EvalSession, "open_engine", lambda _: script)
    asked = eval_session.EvalSession(model=model, tokenizer=tokenizer, setting=setting, context=1000)
    found = probe(asked, [TASK])
    assert (found.arms, found.searches, found.passages) == ({}, {}, {})
    cited, other, invented = found.records
    assert invented["value"] == 0
    assert found.snippets["cited"]["gain"].value == pytest.approx(cited["value"] / 2)
    assert found.snippets["not cited"]["gain"].value == other["value"]
    assert found.snippets["cited"]["ahead"].value == float(cited["value"] > other["value"])
    assert found.as_json().keys() == {"snippets", "margin", "records"}


def test_a_model_that_searches_is_not_probed_without_an_index(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"id": "q", "question": "Where?", "golden_answers": ["Tarn"]}\n')
    done = sleuth("probe", BASE, "--questions", questions)
    assert done.exit_code == 2
    assert "name the index to search, --index DIR" in done.output
