"""`sleuth get`, with a server of this machine in the hub's place that breaks downloads as the real way does."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from broken_hub import BrokenHub, broken_hub
from verb import sleuth

from sleuth.data import catalogue
from sleuth.data.catalogue import Entry, fetch_vectors
from sleuth.data.hub import RemoteFile
from sleuth.recipe import load_recipe
from sleuth.retrieval.index_card import read_card
from sleuth.think.problems import extract, is_right, load_problems
from sleuth.think.tables import ReasonRecipe
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[2]
SHIPPED = catalogue.ENTRIES

ROWS = [
    {"id": str(n), "contents": f'"Town {n}"\nTown {n} lies at the river {n * 7}. {"water " * 40}'} for n in range(300)
]
QUESTIONS = [
    {"id": f"q{n}", "question": f"at which river lies Town {n}?", "golden_answers": [str(n * 7)]} for n in range(20)
]


def as_lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


FILES = {
    "owner/towns/towns.jsonl.gz": gzip.compress(as_lines(ROWS), mtime=0),
    "owner/vectors/part_aa": bytes(range(256)) * 40,
    "owner/vectors/part_ab": b"the rest",
    "owner/asked/test.jsonl": as_lines(QUESTIONS),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenHub]:
    towns = Entry(
        name="towns",
        about="towns",
        file="hf://owner/towns/towns.jsonl.gz",
        passages=300,
        vectors=("hf://owner/vectors/part_aa", "hf://owner/vectors/part_ab"),
        encoder="owner/letters-base",
        questions="asked",
    )
    asked = Entry(name="asked", about="questions", file="hf://owner/asked/test.jsonl")
    monkeypatch.setattr(catalogue, "ENTRIES", (towns, asked))
    with broken_hub(FILES, monkeypatch) as hub:
        yield hub


def test_a_corpus_ends_as_an_index_with_its_recall_and_the_lines_of_a_recipe(hub: BrokenHub, tmp_path: Path) -> None:
    result = sleuth("get", "towns", tmp_path / "towns")
    assert result.exit_code == 0, result.output
    assert " to download and " in result.stderr.splitlines()[0]
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'towns' / 'index'}: 300 passages, bm25"
    assert lines[1].startswith("a golden answer is among the first 3 for 1.000 (")
    assert lines[1].endswith("of 20 questions")
    assert lines[-1] == f'  index = "{tmp_path / "towns" / "index"}"'
    hub.sent.clear()
    assert json.loads(sleuth("get", "towns", tmp_path / "towns", "--json").stdout)["recall"]["value"] == 1
    assert hub.sent == []  # nothing is downloaded twice


def test_without_a_folder_an_index_is_where_recipes_look_and_their_hint_names_the_command(
    hub: BrokenHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("indexes/towns-bm25")
    with pytest.raises(SleuthError, match=r"towns-bm25: no index here; make one with `sleuth get towns`$"):
        read_card(place)
    with pytest.raises(SleuthError, match=r"make one with `sleuth get towns --kind dense`$"):
        read_card(Path("indexes/towns-letters"))
    result = sleuth("get", "towns")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f'  index = "{place}"'
    assert read_card(place).count == 300
    assert (tmp_path / "data" / "towns" / "towns.jsonl.gz").is_file()


@pytest.mark.parametrize("recipe", ["search_r1_slime_3b", "search_r1_grpo_3b", "reason_over_search_0.6b_card"])
def test_published_recipes_name_the_index_of_the_published_vectors_and_require_their_encoder(recipe: str) -> None:
    env = load_recipe(ROOT / "recipes" / f"{recipe}.toml").stage[1].env
    wiki = catalogue.find_entry("wiki-18")
    assert env.index == wiki.index("dense") == Path("indexes/wiki-18-e5")
    assert (env.required_retriever.kind, env.required_retriever.encoder) == ("dense", wiki.encoder)
    assert catalogue.command_for(env.index) == "sleuth get wiki-18 --kind dense"


def test_questions_are_a_file_and_a_line_for_the_recipe(hub: BrokenHub, tmp_path: Path) -> None:
    shown = sleuth("get", "asked", tmp_path).stdout
    assert shown == f'{tmp_path / "test.jsonl"}: 20 questions\nIn a recipe: questions = "{tmp_path / "test.jsonl"}"\n'
    assert (tmp_path / "test.jsonl").read_bytes() == FILES["owner/asked/test.jsonl"]
    assert sleuth("get", "asked", tmp_path, "--kind", "dense").exit_code == 2


def as_parquet(rows: list[dict]) -> bytes:
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content)
    return content.getvalue()


GPQA = """Pre-Revision,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Record ID
old,"Which of these, in
two lines, is largest?",$10^{3}$,$10^{2}$,ten,"1, one",rec06p
"""
OLYMPIAD = {
    "id": 1606,
    "question": "Solve $x^2=4$.",
    "solution": ["By roots."],
    "final_answer": ["$-2,2$"],
    "context": None,
    "image_1": None,
    "modality": "Text-only",
    "is_multiple_answer": True,
    "unit": None,
    "answer_type": "Numerical",
    "subfield": "Algebra",
}
PROBLEMS = {
    "openai/gsm8k/main/test-00000-of-00001.parquet": as_parquet(
        [{"question": "How many eggs are left?", "answer": "16 - 3 = <<16-3=13>>13\n#### 1,300"}]
    ),
    "HuggingFaceH4/MATH-500/test.jsonl": as_lines(
        [
            {
                "problem": "Find $\\sin x$.",
                "solution": "It is $\\boxed{\\frac{\\sqrt{3}}{2}}$.",
                "answer": "\\frac{\\sqrt{3}}{2}",
                "subject": "Precalculus",
                "level": 2,
                "unique_id": "test/precalculus/807.json",
            }
        ]
    ),
    "Idavidrein/gpqa/gpqa_diamond.csv": GPQA.encode(),
    "Hothan/OlympiadBench/OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet": as_parquet([OLYMPIAD]),
}
SOLVED = {
    "gsm8k": ("So 1300 are left. The answer is \\boxed{1300}.", "\\boxed{130}"),
    "math_500": ("\\boxed{\\dfrac{\\sqrt3}{2}}", "\\boxed{\\frac{3}{2}}"),
    "olympiad_bench": ("\\boxed{2, -2}", "\\boxed{2}"),
}
"""A right and a wrong answer of a model to the first problem of a set."""


def test_reasoning_sets_come_in_their_published_layouts_to_where_the_recipe_reads_them_and_are_scored(
    hub: BrokenHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "ENTRIES", SHIPPED)
    monkeypatch.chdir(tmp_path)
    for name, content in PROBLEMS.items():
        monkeypatch.setitem(FILES, name, content)
    recipe = ROOT / "recipes" / "thinking_0.6b_control.toml"
    missing = sleuth("check", "recipe", recipe).stderr
    [reasoning] = [stage for stage in load_recipe(recipe).stage if isinstance(stage, ReasonRecipe)]
    names = ["gsm8k", "math-500", "gpqa-diamond", "olympiad-bench"]
    for name, one in zip(names, reasoning.sets, strict=True):
        assert f'problems = "{one.problems}": no such file; `sleuth get {name}` writes it' in missing
        shown = sleuth("get", name).stdout.splitlines()
        assert shown[0] == f"{one.problems}: 1 problems"
        assert shown[1] == f'In a recipe: sets = [{{ layout = "{one.layout}", problems = "{one.problems}" }}]'
        [problem] = load_problems(one.layout, one.problems)
        right, wrong = SOLVED.get(one.layout, (f"The answer is ({problem.answer}).", "\\boxed{E}"))
        assert is_right(problem, extract(right, problem.form)), name
        assert not is_right(problem, extract(wrong, problem.form)), name
        if problem.choices:
            assert problem.choices["ABCD".index(problem.answer)] == "$10^{3}$"
            assert problem.text == "Which of these, in\ntwo lines, is largest?"
    assert "no such file" not in sleuth("check", "recipe", recipe).stderr


def test_a_set_whose_terms_are_not_accepted_says_where_they_are(
    hub: BrokenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GatedRepoError(Exception):
        """As the hub's own."""

    def refuse(*_: object, **__: object) -> None:
        raise GatedRepoError("401 Client Error. (Request ID: 7)")

    monkeypatch.setattr(catalogue, "ENTRIES", SHIPPED)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)
    assert sleuth("get", "gpqa-diamond").stderr == (
        "error: hf://Idavidrein/gpqa/gpqa_diamond.csv: cannot be downloaded from the hub: its terms have to be "
        "accepted at https://huggingface.co/datasets/Idavidrein/gpqa by the account whose token is in HF_TOKEN\n"
    )


def test_parts_of_vectors_are_joined_and_removed_and_a_kill_between_them_loses_nothing(
    hub: BrokenHub, tmp_path: Path
) -> None:
    parts = [
        RemoteFile(
            url=f"{hub.url}/datasets/{name.rpartition('/')[0]}/resolve/c0ffee/{name.rpartition('/')[2]}",
            name=name.rpartition("/")[2],
            size=len(FILES[name]),
            version=hashlib.sha256(FILES[name]).hexdigest(),
            shown=name,
        )
        for name in ("owner/vectors/part_aa", "owner/vectors/part_ab")
    ]
    from sleuth.runs.progress import progress_bar

    whole = FILES["owner/vectors/part_aa"] + FILES["owner/vectors/part_ab"]
    (tmp_path / "vectors.faiss.joining").write_bytes(whole[:100])  # killed while the first was appended
    joined = fetch_vectors(parts, tmp_path, progress_bar)
    assert joined.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.faiss"]
    joined.unlink()
    (tmp_path / "vectors.faiss.joining").write_bytes(FILES["owner/vectors/part_aa"] + b"th")  # and the second
    hub.sent.clear()
    assert fetch_vectors(parts, tmp_path, progress_bar).read_bytes() == whole
    assert [name for name, _, _ in hub.sent] == ["owner/vectors/part_ab"]
