"""Files of servers: what is wrong with them is said in one line, all of it."""

from __future__ import annotations

import pytest

from sleuth.recipe.grpo import PoolRecipe
from sleuth.types import SleuthError


def test_addresses_are_those_of_the_recipe_and_of_its_files_without_comments(tmp_path):
    file = tmp_path / "servers.txt"
    file.write_text("# those of the night\nhttp://a:30000/v1/  # a spot machine\n\n  https://b\n")
    pool = PoolRecipe(urls=["http://c:1/", f"file:{file}"])
    assert pool.changes
    assert pool.addresses() == ("http://c:1", "http://a:30000", "https://b")
    file.write_text("http://d:1\n")
    assert pool.addresses() == ("http://c:1", "http://d:1")
    assert not PoolRecipe(urls=["http://c:1"]).changes


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (None, ["{file}: No such file or directory"]),
        (b"", ["{file}: names no server; write one http://HOST:PORT a line"]),
        (b"# none yet\n\n", ["{file}: names no server"]),
        (b"\xff\xfe", ["{file}: is not UTF-8"]),
        (
            b"10.0.0.2:30000\nhttp://b:port\nftp://c:1\nhttp://:1",
            [f"{{file}}, line {line}: " for line in (1, 2, 3, 4)],
        ),
        (b"http://a:1\nhttp://b:1\nhttp://a:1/\n", ["http://a:1 is named 2 times"]),
        (b"http://b:1\nhttp//c\n", ["line 2: 'http//c' should be http://HOST:PORT", "http://b:1 is named 2 times"]),
    ],
)
def test_a_file_that_names_no_servers_is_one_line_with_all_that_is_wrong(tmp_path, text, problems):
    file = tmp_path / "servers.txt"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(SleuthError) as raised:
        PoolRecipe(urls=[f"file:{file}", "http://b:1"]).addresses()
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith("engine.urls: ")
    for problem in problems:
        assert problem.format(file=file) in line
