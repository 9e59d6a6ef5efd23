"""A judge that a recipe names: asked once, kept, counted, and never a number where it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from refined import BORN, refined

from sleuth.answers.factory import require_judges, reward_of, reward_spec_of
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.dialect import REFINERS
from sleuth.judges.factory import JudgePool
from sleuth.types import Group, Score, SleuthError

PAINTED = "<snippet id=b2>Ada Voss was a painter.</snippet>"
BOTH = f"{BORN} {PAINTED}"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """Supports all that it is asked."""
    with ChatServer(answer=lambda body: says(scored(2))).running() as server:
        yield server


def paid(server: ChatServer, *, calls: str = "per_claim", **told: object) -> CitationRecipe:
    judge = {"kind": "http", "urls": (server.url,), "model": MODEL, **told}
    return CitationRecipe.model_validate({"kind": "citation", "judge": judge, "calls": calls})


def scores(recipe: CitationRecipe, judge_pool: JudgePool, *answers: str) -> list[Score]:
    reward = reward_of([recipe, recipe], REFINERS["answer_only"], None, judge_pool)
    episodes = tuple(map(refined, answers))
    return asyncio.run(reward(Group(task=episodes[0].task, episodes=episodes)))


def test_a_model_judges_and_is_asked_once_in_this_run_and_the_next(server: ChatServer, tmp_path: Path) -> None:
    file, recipe = tmp_path / "verdicts.sqlite", paid(server)
    with JudgePool(file) as judge_pool:
        first = scores(recipe, judge_pool, BORN, BOTH)
        assert [score.value for score in first] == [2.0, 2.0]  # paid twice, as two rewards of one judge
        # Two different claims, which each of the two rewards wants judged.
        assert judge_pool.figures() == {"judge_asked": 2, "judge_cached": 2, "judge_missing": 0, "judge_invalid": 0}
        assert len(server.asked) == 2
        assert judge_pool.figures()["judge_asked"] == 0
    with JudgePool(file) as judge_pool:
        assert scores(recipe, judge_pool, BORN, BOTH) == first
        assert judge_pool.figures()["judge_cached"] == 4
    assert len(server.asked) == 2


def test_a_verdict_that_could_not_be_had_makes_a_missing_score_and_is_counted(
    server: ChatServer, tmp_path: Path
) -> None:
    def sometimes(body: dict[str, object]) -> tuple[int, object]:
        if "painter" in part(body, "claim"):
            return 400, {"detail": "too long"}
        return says(scored(2)) if "Tarn" in part(body, "claim") else says("I would not know.")

    server.answer = sometimes
    with JudgePool(tmp_path / "verdicts.sqlite") as judge_pool:
        whole, lacking, unread = scores(
            paid(server), judge_pool, BORN, BOTH, "<snippet id=c3>Ida Voss was born in Velde.</snippet>"
        )
        assert (whole.value, lacking.value, unread.value) == (2.0, None, None)
        assert lacking.note.startswith("the judge gave no verdict: ")
        assert "refused with 400" in lacking.note
        figures = judge_pool.figures()
        assert (figures["judge_missing"], figures["judge_invalid"]) == (2, 2)  # of each reward one


def on_sheets(body: dict[str, Any]) -> tuple[int, object]:
    """Supports all claims of a sheet but those about a painter, and every single one."""
    claims = part(body, "claims").splitlines()
    if not claims:
        return says(scored(2))
    entries = [
        {"claim": number, "reason": "so it is", "score": 0 if "painter" in line else 2}
        for number, line in enumerate(claims, start=1)
    ]
    return says(json.dumps({"verdicts": entries}))


def test_all_claims_of_an_answer_are_judged_in_one_call_with_the_scores_of_single_calls(
    server: ChatServer, tmp_path: Path
) -> None:
    server.answer = on_sheets
    with JudgePool(tmp_path / "verdicts.sqlite") as judge_pool:
        both, born, again = scores(paid(server, calls="per_answer"), judge_pool, BOTH, BORN, BOTH)
    assert len(server.asked) == 2  # equal answers once
    assert (both.parts["citation_recall"], born.parts["citation_recall"]) == (0.5, 1.0)
    assert again == both
    server.answer = lambda body: says(scored(0 if "painter" in part(body, "claim") else 2))
    with JudgePool(tmp_path / "single.sqlite") as judge_pool:
        assert scores(paid(server), judge_pool, BOTH, BORN) == [both, born]


@pytest.mark.parametrize(("calls", "value"), [("per_answer", None), ("per_answer_or_claim", 2.0)])
def test_a_sheet_that_cannot_be_read_is_missing_or_asked_singly_where_the_recipe_says_so(
    server: ChatServer, tmp_path: Path, calls: str, value: float | None
) -> None:
    server.answer = lambda body: says("All fine." if part(body, "claims") else scored(2))
    with JudgePool(tmp_path / "verdicts.sqlite") as judge_pool:
        [score] = scores(paid(server, calls=calls), judge_pool, BOTH)
    assert score.value == value
    assert value is not None or score.note.startswith("the judge gave no verdict: twice no verdict")
    assert len(server.asked) == 2 + (0 if value is None else 2)  # the sheet twice, then each claim


def test_where_nobody_may_be_asked_only_what_was_kept_is_known(server: ChatServer, tmp_path: Path) -> None:
    file, recipe = tmp_path / "verdicts.sqlite", paid(server)
    with JudgePool(file) as judge_pool:
        scores(recipe, judge_pool, BORN)
    with JudgePool(file, asks=False) as judge_pool:
        known, unknown = scores(recipe, judge_pool, BORN, PAINTED)
    assert (known.value, unknown.value) == (2.0, None)
    assert "the verdict is not cached, and no judge may be called" in unknown.note
    assert len(server.asked) == 1


def test_a_judge_that_is_not_there_is_one_line_that_names_its_reward(server: ChatServer) -> None:
    require_judges([paid(server)])
    for recipe, said in (
        (paid(server, model="gpt-9"), "the judge of the citation reward: model = 'gpt-9': .* does not serve it"),
        (paid(server, urls=("http://127.0.0.1:9",)), "the judge of the citation reward: urls: .* does not answer"),
        (paid(server, key_variable="NO_SUCH_KEY"), "there is no such variable in the environment"),
    ):
        with pytest.raises(SleuthError, match=said):
            require_judges([recipe])
    assert server.asked == []


def test_the_reward_spec_names_the_judge_and_not_where_it_is(server: ChatServer) -> None:
    spec = reward_spec_of([paid(server)])
    assert spec.parts[0].scorer.startswith(f"http {MODEL} ")
    assert reward_spec_of([paid(server, urls=("http://10.0.0.2:8000",), seconds=5.0)]).hash == spec.hash
    assert reward_spec_of([paid(server, max_tokens=9)]).hash != spec.hash
    assert reward_spec_of([paid(server, calls="per_answer")]).hash != spec.hash
    lexical = CitationRecipe.model_validate({"kind": "citation"})
    assert reward_spec_of([lexical]).parts[0].scorer.startswith("lexical 2, sum=recommended, formula=f1, ")
