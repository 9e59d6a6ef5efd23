"""Whether a model uses what it retrieves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emulator.served import emulated_server
from typer.testing import CliRunner, Result

from sleuth.cli.app import app
from sleuth.learn.models import load_model

BASE = Path(__file__).parents[2] / "models" / "tiny-base"


def probed(world: Path, *more: object) -> Result:
    asked = ["--questions", world / "qa_train.jsonl", "--index", world / "index", "--limit", 24]
    return CliRunner().invoke(app, list(map(str, ["probe", BASE, *asked, *more])))


@pytest.fixture(scope="module")
def found(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("probe") / "probe.json"
    result = probed(world, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    shown = probed(world, "--limit", 4).stdout
    for part in ("4 questions", "gain of a search, in nats", "gain of a passage, in nats", "gained at most 1 nat."):
        assert part in shown
    contents = json.loads(out.read_text())
    assert json.loads(result.stdout) == {key: value for key, value in contents.items() if key != "records"}
    return contents


def test_the_arms_answer_the_same_questions_and_are_compared_with_the_base_arm(found: dict[str, Any]) -> None:
    assert list(found["arms"]) == ["as it is", "closed book", "nothing found", "others' passages"]
    assert all(arm["em"]["n"] == 24 for arm in found["arms"].values())
    as_it_is = found["arms"]["as it is"]
    assert as_it_is["searches_mean"]["value"] > 0
    assert "difference" not in as_it_is
    assert found["arms"]["closed book"]["searches_mean"]["value"] == 0
    for name, arm in found["arms"].items():
        if name != "as it is":
            assert arm["difference"]["value"] == pytest.approx(arm["em"]["value"] - as_it_is["em"]["value"])


def test_every_search_and_passage_with_shown_results_has_a_gain(found: dict[str, Any]) -> None:
    searches = [record for record in found["records"] if record["passage"] is None]
    passages = [record for record in found["records"] if record["passage"] is not None]
    assert searches
    assert len(passages) > len(searches)
    assert all(record["tokens"] > 0 for record in found["records"])
    assert found["searches"]["all"]["gain"]["n"] == len({record["id"] for record in searches})
    assert found["margin"] == 1.0
    assert found["searches"]["all"]["gain"]["value"] > 0  # the base reads what it found


def test_gold_passages_are_ahead_if_they_gained_more_than_any_other_of_their_search(
    found: dict[str, Any], world: Path
) -> None:
    rows = map(json.loads, (world / "qa_train.jsonl").read_text().splitlines())
    gold = {row["id"]: set(row["gold_ids"]) for row in rows}
    searches: dict[tuple[str, int], dict[bool, list[float]]] = {}
    for record in found["records"]:
        if record["passage"] is not None and record["em"] == 1:
            of_search = searches.setdefault((record["id"], record["search"]), {True: [], False: []})
            of_search[record["passage"] in gold[record["id"]]].append(record["gain"])
    won: dict[str, list[bool]] = {}
    for (task, _), gains in searches.items():
        if gains[True] and gains[False]:
            won.setdefault(task, []).append(max(gains[True]) > max(gains[False]))
    flat = [ahead for of_task in won.values() for ahead in of_task]
    figure = found["passages"]["gold passages"]["ahead"]
    assert flat
    assert figure["value"] == pytest.approx(sum(flat) / len(flat))
    assert figure["n"] == len(won)
    assert "ahead" not in found["passages"]["other passages"]


def test_a_server_answers_in_every_arm_and_this_process_computes_the_gains(
    world: Path, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "probe.json"
    monkeypatch.delattr("sleuth.evaluation.eval_session.open_engine")
    served = load_model(str(BASE), dtype="float32", device="cpu")
    with emulated_server("vllm", *served, context=1024) as server:
        other = probed(world, "--engine", server.url)
        result = probed(world, "--engine", server.url, "--served-as", "tiny", "--out", out)
        assert result.exit_code == 0, result.stderr
        assert server.fault() > 24 * 4
    there = json.loads(out.read_text())
    engine = there.pop("engine")
    assert there == {key: value for key, value in found.items() if key != "model_sha256"}  # the server has the weights
    assert (engine["url"], engine["kind"], engine["model"]) == (server.url, "vLLM", "tiny")
    assert other.exit_code == 2
    assert f"error: --engine {server.url}: serves 'tiny', and the checkpoint is {BASE}" in other.stderr
    gone = probed(world, "--engine", server.url)
    assert gone.exit_code == 2
    assert gone.stderr.startswith(f"error: --engine {server.url}: does not answer")
    assert gone.stderr.count("\n") == 1
