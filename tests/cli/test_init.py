"""`sleuth init` writes a folder that trains at once, from what people have, or refuses it in one line."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verb import refusal, sleuth

from sleuth.cite.dialect import REFINERS
from sleuth.data.questions import normalised_question
from sleuth.dialect import DIALECTS
from sleuth.episodes.protocol import ProtocolCard, text_sha256
from sleuth.recipe import GrpoRecipe, load_recipe
from sleuth.retrieval.folder import update_folder

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
Run = Callable[..., Path]
SMALL = [
    "grpo.stop_after=1",
    "grpo.prompts_per_step=2",
    "grpo.samples_per_prompt=2",
    "grpo.save_every=1",
    "grpo.probe_prompts=0",
]
EVALUATED = ["stage.0.data.limit=1", "stage.2.data.limit=1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own(here: Path) -> Path:
    """Questions as a table and a corpus as a folder of texts."""
    (here / "texts/sub").mkdir(parents=True)
    (here / "texts/firms.md").write_text("# Firms\n\n" + " ".join(f"Firm {at} was founded by Ada." for at in range(40)))
    (here / "texts/sub/towns.txt").write_text("Tamton is a town.\n")
    (here / "texts/picture.png").write_bytes(b"\x89PNG")
    rows = [f'"Who founded firm {at}?",Ada {at}\n' for at in range(20)]
    (here / "asked.csv").write_text("query,answer\n" + "".join(rows) + "WHO founded Firm 3,Ada 3\n")
    return here


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_table_and_a_folder_of_texts_become_a_run_that_trains_at_once(own: Path, run: Run) -> None:
    done = sleuth("init", "mine", "--corpus", "texts", "--questions", "asked.csv")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-2:] == [
        "mine/recipe.toml: ok: 60 steps on 19 prompts",
        "Next: sleuth train mine/recipe.toml --run runs/mine",
    ]
    recipe, stage = load_recipe(own / "mine/recipe.toml"), trained(own / "mine/recipe.toml")
    card = ProtocolCard.read(BASE.parent / "tiny-real")
    assert card is not None
    assert Path(str(recipe.model)).name == "tiny-real"  # the others read no real text
    assert (stage.env.setting(None, []).dialect, stage.learning_rate) == (card.dialect, 1e-4)
    assert (stage.env.setting(None, []).prompt, stage.context) == (card.prompt_text, card.context)
    assert [(one.own_kind(), one.weight) for one in stage.reward] == [
        ("answer", 0.6),
        ("token_f1", 0.2),
        ("cited_answer", 0.2),
    ]
    passages = lines_of(own / "mine/corpus.jsonl")
    assert [row["id"] for row in passages] == ["firms.md#1", "firms.md#2", "firms.md#3", "sub/towns.txt#1"]
    assert passages[-1]["contents"] == '"towns"\nTamton is a town.'
    assert sleuth("check", "recipe", "mine/recipe.toml").exit_code == 0
    last = run(Path("mine/recipe.toml"), own / "run", *SMALL, *EVALUATED)
    assert (last / "model.safetensors").is_file()
    assert sorted(path.name for path in own.iterdir()) == ["asked.csv", "mine", "run", "texts"]


def test_no_question_is_both_trained_and_tested_and_the_seed_chooses(own: Path) -> None:
    parts = {}
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        assert sleuth("init", name, "--corpus", "texts", "--questions", "asked.csv", "--seed", seed).exit_code == 0
        train, test = (lines_of(own / name / f"{part}.jsonl") for part in ("train", "test"))
        asked = [{normalised_question(str(row["question"])) for row in part} for part in (train, test)]
        assert not asked[0] & asked[1]
        assert len(train) + len(test) == 21
        assert len(asked[1]) == 2
        parts[name] = test
    assert parts["one"] == parts["again"] != parts["other"]


def test_a_real_model_gets_a_prompt_of_rules_and_room(own: Path) -> None:
    from sleuth.recipe.starter import starter_recipe

    (own / "search.toml").write_text(starter_recipe(Path("any where"), "Qwen/Qwen3-0.6B"))
    recipe = load_recipe(own / "search.toml")
    assert (recipe.model, recipe.dtype, recipe.name) == ("Qwen/Qwen3-0.6B", "bfloat16", "any-where")
    table = tomllib.loads((own / "search.toml").read_text())["stage"][1]
    assert (table["env"]["prompt"], table["env"]["prompt_role"], table["context"]) == ("search_rules", "user", 4096)
    assert table["data"]["questions"] == "any where/train.jsonl"


def trained(recipe: Path) -> GrpoRecipe:
    """The grpo stage of a recipe."""
    return next(iter(load_recipe(recipe).stages_of(GrpoRecipe).values()))


def checkpoint_of(folder: Path, recipe: Path, **changes: Any) -> None:
    """A tiny model in `folder` that carries the protocol of a recipe's grpo stage, with changes."""
    stage = trained(recipe)
    card = stage.env.setting(None, []).protocol("strict", stage.context)
    shutil.copytree(BASE, folder)
    card.model_copy(update=changes).write(folder)


def with_positions(folder: Path, positions: int) -> None:
    shutil.copytree(BASE, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))


def test_init_index_and_check_read_a_folder_as_ask_does(own: Path) -> None:
    (own / "texts/broken.csv").write_text("town,people\nTarn\n")
    (own / "texts/twin.md").write_bytes((own / "texts/firms.md").read_bytes())
    assert refusal("index", "nowhere", "nothing") == "nowhere: no such file"
    said: list[str] = []
    update_folder(Path("texts"), Path("home"), said.append)
    commands = [
        ("init", "mine", "--corpus", "texts", "--questions", "asked.csv"),
        ("index", "texts", "found"),
        ("check", "corpus", "texts", "--against", "asked.csv"),
    ]
    results = [sleuth(*command) for command in commands]
    assert [result.exit_code for result in results] == [0, 0, 0], [result.output for result in results]
    corpora = {(own / folder / "corpus.jsonl").read_text() for folder in ("home", "mine", "found.corpus")}
    assert len(corpora) == 1
    assert '"sub/towns.txt#1"' in corpora.pop()
    assert len(said) == 3
    assert all({f"note: {line}" for line in said} <= {*result.stderr.splitlines()} for result in results)


def test_a_checkpoint_is_trained_further_in_the_protocol_that_it_was_taught(own: Path) -> None:
    corpus = ["--corpus", "texts", "--questions", "asked.csv"]
    assert sleuth("init", "first", *corpus).exit_code == 0
    dialect = replace(DIALECTS["slime"], turn_tokens=40, searches=2, top_k=1, passage_tokens=60, hint="Search again.")
    text = "Say what you know of {question}"
    prompt = {"prompt": "ours", "prompt_text": text, "prompt_sha256": text_sha256(text)}
    checkpoint_of(own / "taught", own / "first/recipe.toml", dialect=dialect, context=500, scorer="slime", **prompt)
    done = sleuth("init", "mine", *corpus, "--model", "taught")
    assert (done.exit_code, done.stderr) == (
        0,
        "note: texts: picture.png: left out: no kind of document that is read\n",
    )
    text = (own / "mine/recipe.toml").read_text()
    assert "[stage.env] # the model's own protocol, of its protocol.json" in text
    stage = trained(own / "mine/recipe.toml")
    assert stage.context == 500
    assert stage.reward[0].answer_scorer == "slime"
    setting = stage.env.setting(None, [])
    assert (setting.dialect, setting.prompt) == (dialect, prompt["prompt_text"])
    checked = sleuth("check", "recipe", "mine/recipe.toml")
    assert not [line for line in checked.stdout.splitlines() if "another protocol" in line and "dialect" in line]
    changed = sleuth("check", "recipe", "mine/recipe.toml", "--set", "stage.1.env.top_k=3")
    said = "dialect.top_k: the first checkpoint 1, this stage 3"
    assert f"warning: stage.1 (grpo): another protocol: {said}" in changed.stdout.splitlines()


def test_the_shipped_reader_is_asked_in_its_dialect_and_a_refiner_with_a_note(own: Path) -> None:
    model = str(BASE.parent / "tiny-real")
    assert sleuth("init", "mine", "--corpus", "texts", "--questions", "asked.csv", "--model", model).exit_code == 0
    stage = trained(own / "mine/recipe.toml")
    card = ProtocolCard.read(Path(model))
    assert card is not None
    assert stage.env.setting(None, []).dialect == card.dialect
    assert (stage.env.setting(None, []).prompt, stage.context) == (card.prompt_text, 1024)
    checkpoint_of(own / "refiner", own / "mine/recipe.toml", dialect=REFINERS["thinking"])
    done = sleuth("init", "other", "--corpus", "texts", "--questions", "asked.csv", "--model", "refiner")
    assert done.exit_code == 0
    assert "note: refiner/protocol.json: does not search; the recipe asks in another protocol\n" in done.stderr


def test_the_context_fits_the_positions_of_the_model_and_the_change_that_its_recipe_suggests_may_be_small(
    own: Path,
) -> None:
    with_positions(own / "short", 1000)
    done = sleuth("init", "mine", "--corpus", "texts", "--questions", "asked.csv", "--model", "short")
    assert done.exit_code == 0, done.output
    assert trained(own / "mine/recipe.toml").context <= 1000
    [suggested] = re.findall(r"--set (\S+)=\d+`", (own / "mine/recipe.toml").read_text())
    for value in (1, 50):
        assert sleuth("check", "recipe", "mine/recipe.toml", "--set", f"{suggested}={value}").exit_code == 0


def test_a_recipe_that_would_fail_its_own_check_is_not_written(own: Path) -> None:
    with_positions(own / "short", 8)
    found = sleuth("init", "mine", "--corpus", "texts", "--questions", "asked.csv", "--model", "short")
    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1].endswith("mine: its recipe would not run, so nothing was written")
    assert not (own / "mine").exists()


def test_columns_of_other_names_are_mapped(own: Path) -> None:
    (own / "set.json").write_text(
        json.dumps({"data": [{"prompt": "Who?", "target": 7}, {"prompt": "Why?", "target": "x"}]})
    )
    (own / "wiki.tsv").write_text("heading\tbody\nTarn\tA town.\n")
    names = ["question=prompt", "answer=target", "text=body", "title=heading"]
    options = [word for name in names for word in ("--column", name)]
    done = sleuth("init", "mine", "--corpus", "wiki.tsv", "--questions", "set.json", *options)
    assert done.exit_code == 0, done.output
    rows = lines_of(own / "mine/train.jsonl") + lines_of(own / "mine/test.jsonl")
    assert {(str(row["question"]), *row["golden_answers"]) for row in rows} == {("Who?", "7"), ("Why?", "x")}  # type: ignore[misc]
    assert lines_of(own / "mine/corpus.jsonl") == [{"id": "row_2", "contents": '"Tarn"\nA town.'}]


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(own: Path) -> None:
    (own / "mine").mkdir()
    (own / "mine/notes.txt").write_text("kept")
    said = refusal("init", "mine", "--corpus", "texts", "--questions", "asked.csv")
    assert said == "mine: exists and is not empty; name a new folder (nothing was changed)"
    assert [path.name for path in (own / "mine").iterdir()] == ["notes.txt"]
    data = ("--corpus", "texts", "--questions", "asked.csv")
    assert refusal("init", "texts/firms.md", *data).startswith("texts/firms.md: exists")
    assert refusal("init", ".", *data).startswith(".: is the current folder")


FILES = {
    "x.odt": "PK",
    "plain.csv": "question,solution\nwho?,me\nwhat?,it\n",
    "corpus.jsonl": '{"id": 1, "contents": "a"}\n',
    "ragged.csv": "question,answer\na,b,c\n",
    "open.csv": 'question,answer\n"a,b\n',
    "cut.json": '[{"question": ',
    "one.csv": "question,answer\nwho?,me\n",
    "deep/empty/picture.png": "",
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--corpus nope --questions asked.csv", "nope: no such file"),
        ("--corpus x.odt --questions asked.csv", "x.odt: unknown kind of file; its name should end in one of"),
        ("--corpus texts --questions plain.csv", "plain.csv: in all 2 rows: no `golden_answers`; expected a list"),
        ("--corpus texts --questions corpus.jsonl", "corpus.jsonl:1: a passage, not a question: it has `contents`"),
        ("--corpus asked.csv --questions asked.csv", "asked.csv:2: a question, not a passage: it has `query` and no"),
        ("--corpus texts --questions ragged.csv", "ragged.csv:2: has 3 cells, and the first line names 2 columns"),
        ("--corpus texts --questions open.csv", "open.csv: not a table after line 1"),
        ("--corpus texts --questions cut.json", "cut.json:1: not JSON (Expecting value)"),
        ("--corpus texts --questions one.csv", "one.csv: needs at least two different questions"),
        ("--corpus texts", "sleuth init: missing option '--questions'"),
        ("--task refine", "sleuth init: no such option: --task"),
        ("--corpus texts --questions asked.csv --model no/model/here", "no/model/here: no such folder here"),
        ("--corpus texts --questions asked.csv --column foo=bar", "--column foo=bar: should be NAME=COLUMN, such as"),
        ("--corpus texts --questions asked.csv --column answer=x", "asked.csv:2: no column x, which --column names"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(own: Path, options: str, said: str) -> None:
    for name, text in FILES.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    before = sorted(path.name for path in own.iterdir())
    found = refusal("init", "mine", *options.split())
    assert found.startswith((said, *(f"{option} {said}" for option in ("--corpus", "--questions", "--model"))))
    assert sorted(path.name for path in own.iterdir()) == before
