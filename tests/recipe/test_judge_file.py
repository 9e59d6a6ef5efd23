from __future__ import annotations

from pathlib import Path

import pytest
from refusals import line_of

from sleuth.judges.tables import HttpJudgeRecipe, LexicalJudgeRecipe
from sleuth.recipe.load import load_judge

HTTP = '[judge]\nkind = "http"\nurls = ["http://127.0.0.1:8000"]\nmodel = "Qwen/Qwen3-8B"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "judge.toml"


def test_a_judge_is_a_table_or_a_name(file: Path) -> None:
    file.write_text(HTTP + "budget = 500\n[judge.request.chat_template_kwargs]\nenable_thinking = false\n")
    judge = load_judge(file)
    assert isinstance(judge, HttpJudgeRecipe)
    assert (judge.urls, judge.model, judge.budget) == (("http://127.0.0.1:8000",), "Qwen/Qwen3-8B", 500)
    assert judge.request == {"chat_template_kwargs": {"enable_thinking": False}}
    file.write_text('judge = "lexical"\n')
    assert load_judge(file) == LexicalJudgeRecipe()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "judge.toml: judge is missing"),
        ("[judge]\nmodel = 1\n", "judge.toml: judge.kind is missing: it says what this table is"),
        (HTTP.replace("http", "htp", 1), 'judge.kind = "htp": should be one of "lexical", "http"'),
        (
            '[judge]\nkind = "nli"\nmodel = "m"\n',
            'judge.kind = "nli" was deleted: serve a judge and set kind = "http", or',
        ),
        (HTTP + "second = 3\n", "judge.toml: judge.second is no key here; the nearest is judge.seconds"),
        (HTTP.replace("http://", ""), "judge.urls holds '127.0.0.1:8000': expected http://HOST:PORT"),
        (HTTP + "[judge.request]\ntemperature = 1\n", "judge.request.temperature cannot be set here"),
    ],
)
def test_an_error_in_a_judge_file_is_one_line_that_names_the_key(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    assert expected in line_of(load_judge, file)
