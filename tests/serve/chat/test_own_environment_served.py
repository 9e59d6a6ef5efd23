"""A model that was trained in an environment of the user, to the end: evaluated, served, exported as it was played."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from run_files import evaluation
from small_agents import app_of, client_of
from verb import printed_json, refusal, sleuth

from sleuth.episodes.protocol import ProtocolCard
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.runs.model_card import gguf_card
from sleuth.serve.agent import agent_of

ENV = """
from pathlib import Path
from sleuth.types import Action, Piece, Reply

WORDS = Path(__file__).with_name("words.txt")

class Diary:
    \"\"\"Each turn is written down, and read out before the next one.\"\"\"

    def __init__(self, task, *, turns=2):
        assert task.question != "nothing", "there is nothing to write about"
        self.task, self.turns, self.pages = task, turns, []

    async def open(self):
        return Reply(pieces=(Piece(text=f"{WORDS.read_text()} {self.task.question}\\n"),), max_tokens=6)

    def reply(self, text, stop):
        self.pages.append(text)
        action = Action(kind="answer", text=f"{len(self.pages)} pages")
        if len(self.pages) == self.turns:
            return Reply(action=action, done="answered")
        read = f"\\n{len(self.pages)}: {' '.join(self.pages)}\\n"
        return Reply(pieces=(Piece(text=read),), action=action, max_tokens=6)
"""
OVERRIDES = (
    "stage.1.prompts_per_step=2",
    "stage.1.samples_per_prompt=2",
    "stage.1.stop_after=1",
    "stage.1.env={ kind = 'python', function = 'diary:Diary', parameters = { turns = 3 }, files = [WORDS] }",
    "stage.0.data.limit=1",
    "stage.2.data.limit=2",
)


@pytest.fixture
def made(recipe_file, run, once) -> Path:
    """The folder with the code, the recipe and the run."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "diary.py").write_text(ENV)
        (folder / "words.txt").write_text("Write about")
        recipe = folder / "diary.toml"
        recipe.write_text(recipe_file.read_text())
        run(recipe, folder / "run", *(one.replace("WORDS", f"'{folder}/words.txt'") for one in OVERRIDES))

    return once("diary", make)


@pytest.fixture
def checkpoint(made) -> Path:
    return made / "run/checkpoints/step-000001"


@pytest.fixture
def questions(world, tmp_path) -> Path:
    file = tmp_path / "few.jsonl"
    file.write_text("".join((world / "qa_test.jsonl").read_text().splitlines(keepends=True)[:2]))
    return file


def test_it_is_evaluated_as_by_the_stage_of_its_run(made, checkpoint, questions, tmp_path):
    out = tmp_path / "out.json"
    printed = printed_json("eval", checkpoint, "--questions", questions, "--allow-code", "--out", out)
    stage = evaluation(made / "run", "trained")
    assert printed["outcomes"] == stage["outcomes"]
    found = json.loads(out.read_text())
    assert found["records"] == stage["records"]
    assert found["protocol"]["hash"] == stage["protocol"]["hash"]
    assert [action["text"] for action in found["records"][0]["actions"]] == ["1 pages", "2 pages", "3 pages"]


def test_it_is_served_with_the_message_as_the_question(checkpoint):
    session, _ = open_eval_session(str(checkpoint), [], index=None, allow_code=True)
    with client_of(app_of(agent_of(session, "diary", None))) as client:
        asked = {"messages": [{"role": "user", "content": "a lake"}], "temperature": 0}
        answer = client.post("/v1/chat/completions", json=asked).json()
        assert answer["choices"][0]["message"]["content"] == "3 pages"
        asked["messages"][0]["content"] = "nothing"
        failed = client.post("/v1/chat/completions", json=asked)
        assert failed.status_code == 503
        assert (
            "diary.py:11: Diary: AssertionError: there is nothing to write about" in failed.json()["error"]["message"]
        )
        asked["messages"][0]["content"] = "a lake"
        streamed = client.post("/v1/chat/completions", json=asked | {"stream": True}).text  # as the page asks
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in streamed.splitlines() if line[6:7] == "{"]
        assert "".join(delta.get("content", "") for delta in deltas) == "3 pages"


def test_its_code_is_imported_only_where_it_may_be_and_is_what_it_was(
    made, checkpoint, questions, tmp_path, monkeypatch
):
    asked = ("eval", checkpoint, "--questions", questions)
    for verb in (asked, ("serve", checkpoint, "--port", "0")):
        assert "was trained in diary:Diary, code of your own that its card does not start; add --allow-code" in refusal(
            *verb
        )
    assert "--prompt, --closed-book: has no effect: " in refusal(
        *asked, "--allow-code", "--closed-book", "--prompt", "plain"
    )
    copy = shutil.copytree(made, tmp_path / "copy")
    recipe = copy / "run/recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(made), str(copy)))
    asked = ("eval", copy / "run/checkpoints/step-000001", "--questions", questions, "--allow-code")
    with (copy / "diary.py").open("a") as source:
        source.write("\n# another byte\n")
    changed = sleuth(*asked)
    assert changed.exit_code == 2
    assert "was trained in diary:Diary, and diary.py changed since; put back what was there" in changed.stderr
    (copy / "diary.py").unlink()
    monkeypatch.delitem(sys.modules, "diary")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.endswith(("diary", "copy"))])
    gone = sleuth(*asked)
    assert gone.exit_code == 2
    assert "was trained in diary:Diary: there is no module diary: diary.py is neither" in gone.stderr


def test_its_cards_name_the_file(made, checkpoint, tmp_path):
    card = (checkpoint / "README.md").read_text()
    assert f"It acts with `diary:Diary` (`diary.py` and `{made}/words.txt`), code that is no part of this" in card
    assert f"sleuth serve {checkpoint} --allow-code" in card
    exported = gguf_card(
        tmp_path / "diary.gguf", source=checkpoint, dtype="f16", protocol=ProtocolCard.read(checkpoint), context=400
    )
    assert "It acts with `diary:Diary` (`diary.py` and " in exported


TOOLS = '''
class Sum:
    """A sum that a call adds to."""

    def __init__(self):
        self.sum = 0

    def reset(self):
        return "The sum is 0."

    def add(self, number: int) -> int:
        """Adds a number.

        Args:
            number: What is added.
        """
        self.sum += number
        return self.sum

    def score(self):
        return self.sum + 0.5
'''
TOOLS_OVERRIDES = (
    *OVERRIDES[:3],
    "stage.1.env={ kind = 'tools', tools = ['summing:Sum'], prompt = PROMPT, index = INDEX, turn_tokens = 8 }",
    "stage.1.reward=[{ kind = 'environment' }]",
    *OVERRIDES[4:],
)


@pytest.fixture
def tools_run(recipe_file, run, once, world) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "summing.py").write_text(TOOLS)
        (folder / "prompt.txt").write_text("Count.\n{question}")
        recipe = folder / "summing.toml"
        recipe.write_text(recipe_file.read_text())
        places = {"PROMPT": f"'{folder}/prompt.txt'", "INDEX": f"'{world}/index'"}
        run(recipe, folder / "run", *(_filled(one, places) for one in TOOLS_OVERRIDES))

    return once("summing", make)


def _filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(name, place)
    return text


def test_a_model_of_own_tools_is_evaluated_and_served_as_it_was_trained(tools_run, world, questions, tmp_path):
    checkpoint, index = tools_run / "run/checkpoints/step-000001", ("--index", world / "index")
    asked = ("eval", checkpoint, "--questions", questions)
    out = tmp_path / "out.json"
    printed = printed_json(*asked, *index, "--allow-code", "--out", out)
    stage = evaluation(tools_run / "run", "trained")
    assert (printed["outcomes"], printed["score"]) == (stage["outcomes"], stage["score"])
    found = json.loads(out.read_text())
    assert (found["records"], found["protocol"]["hash"]) == (stage["records"], stage["protocol"]["hash"])
    [score] = {record["score"] for record in found["records"]}
    assert score == 0.5
    assert "and the tool search: name its index by --index DIR" in refusal(*asked, "--allow-code")
    assert "add --allow-code" in refusal(*asked, *index)
    assert "sleuth serve" in (card := (checkpoint / "README.md").read_text())
    assert "--index DIR --allow-code" in card
    session, notes = open_eval_session(str(checkpoint), [], index=world / "index", allow_code=True)
    assert not [note for note in notes if "not what the checkpoint was trained with" in note]
    with client_of(app_of(agent_of(session, "sum", None))) as client:
        body = {"messages": [{"role": "user", "content": "a lake"}], "temperature": 0}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
