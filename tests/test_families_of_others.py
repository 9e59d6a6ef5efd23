"""A family of a user: one file, named by a recipe as `module:name` or found as the entry point of a package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleuth import family
from sleuth.cli.pipeline import require_inputs, run_recipe
from sleuth.own.families import use_installed
from sleuth.recipe import Recipe, load_recipe
from sleuth.recipe.problems import Look
from sleuth.runs.run_folder import RunFolder
from sleuth.terminal.recipe_inputs import missing_inputs
from sleuth.types import SleuthError

ROOT = Path(__file__).parents[1]
BASE = ROOT / "models" / "tiny-base"
FAMILY = '''
from pathlib import Path
from typing import Literal

from sleuth.answers.tables import EpisodeRewardRecipe
from sleuth.family import Family
from sleuth.recipe.judges import JudgeFields
from sleuth.recipe.stage import StageFields


class RhymeReward(EpisodeRewardRecipe):
    """1 for an episode that ends in a rhyme."""

    kind: Literal["rhyme"]
    weight: float = 1.0
    measure = staticmethod(lambda episode, dialect: float(episode.trajectory.text.endswith("ime")))


class RhymeJudge(JudgeFields):
    """Hears rhymes."""

    kind: Literal["ear"]


class Recite(StageFields):
    """Writes a line."""

    kind: Literal["recite"]
    name: str = "recite"
    line: str

    def require_inputs(self, inputs):
        return []

    def run(self, context):
        (context.folder.path / "poem.txt").write_text(self.line)
        return Path(context.model)


def rhyme(word: str) -> None:
    """Print a rhyme."""
    print(word + "ime")


POETRY = Family(
    name="poetry",
    about="Verses.",
    stages={"recite": "verses:Recite"},
    rewards={"rhyme": "verses:RhymeReward"},
    judges={"ear": "verses:RhymeJudge"},
    verbs={"Poetry": {"rhyme": "verses:rhyme"}},
)
'''
RECIPE = """
name = "poem"
model = "{base}"
families = ["verses:POETRY"]

[[stage]]
kind = "recite"
line = "in time"
"""


@pytest.fixture(autouse=True)
def only_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves no family, module or path of a test behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    family.OTHERS.clear()
    family.changed()
    use_installed.cache_clear()
    sys.modules.pop("verses", None)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "verses.py").write_text(FAMILY)
    (tmp_path / "poem.toml").write_text(RECIPE.format(base=BASE))
    return tmp_path / "poem.toml"


def problem(file: Path, *overrides: str, look: Look | None = None) -> str:
    with pytest.raises(SleuthError) as error:
        load_recipe(file, overrides, look)
    (line,) = error.value.args
    return line


def run(file: Path, folder: Path) -> Recipe:
    resolved = load_recipe(file, look=missing_inputs)
    require_inputs(resolved)
    with RunFolder.open(folder, resolved) as place:
        run_recipe(resolved, place)
    return resolved


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('"Verses."', '"Verses.', "verses.py:47: SyntaxError: unterminated string literal (detected at line 47)"),
        ("import Literal", "import Literary", "verses.py:3: cannot be imported: ImportError: cannot import name"),
        ('name="poetry"', 'name="think"', "verses.py:45: POETRY: there is another family named 'think'"),
        (
            'rewards={"rhyme"',
            'rewards={"answer"',
            "verses.py:45: POETRY: rewards: 'answer' is a name of the family 'core'; choose another name",
        ),
        (
            '{"rhyme": "verses:rhyme"}',
            '{"train": "verses:rhyme"}',
            "verses.py:45: POETRY: verbs: 'train' is one already; choose another name",
        ),
        (
            "verses:RhymeReward",
            "verses:RimeReward",
            "verses.py:45: POETRY: rewards: 'rhyme': verses.py has no RimeReward; the nearest is RhymeReward",
        ),
        (
            "verses:RhymeReward",
            "verses:RhymeJudge",
            "verses.py:45: POETRY: rewards: 'rhyme': verses:RhymeJudge should be a class derived from RewardFields",
        ),
        (
            'stages={"recite"',
            'stages={"sing"',
            "verses.py:45: POETRY: stages: 'sing': verses:Recite has kind = 'recite'",
        ),
        ("POETRY = Family(", "POETRY = dict(", "verses.py:45: POETRY: expected a sleuth.family.Family, found {'name'"),
    ],
)
def test_a_family_that_cannot_be_used_is_one_line_with_its_place(
    recipe: Path, before: str, after: str, line: str
) -> None:
    assert FAMILY.count(before) == 1
    Path("verses.py").write_text(FAMILY.replace(before, after))
    assert problem(recipe).startswith(f'{recipe}: families.0 = "verses.py:POETRY": {line}')


@pytest.fixture
def installed(recipe: Path, tmp_path: Path) -> Path:
    """A folder of packages in which this family is installed, and one whose module is missing."""
    site = tmp_path / "site"
    for package, value in (("verses", "verses:POETRY"), ("gone", "gone:FAMILY")):
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sleuth.families]\n{package} = {value}\n")
    Path("verses.py").rename(site / "verses.py")
    recipe.write_text(recipe.read_text().replace('families = ["verses:POETRY"]\n', ""))
    return site


GONE = "the family gone of gone cannot be used: there is no module gone: "


def test_an_installed_family_is_found_by_an_unknown_kind(
    installed: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.append(str(installed))
    load_recipe(ROOT / "recipes" / "demo.toml", [f'model="{BASE}"'])
    assert "verses" not in sys.modules
    run(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "poem.txt").is_file()
    assert capsys.readouterr().err.count(GONE) == 1


def test_verbs_of_an_installed_family_are_listed_and_run(installed: Path) -> None:
    def sleuth(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(installed), *sys.path])
        command = [sys.executable, "-m", "sleuth", *words]
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False
        )

    listed = sleuth("--help")
    assert "Poetry:\n  rhyme           Print a rhyme.\n" in listed.stdout
    assert listed.stderr.startswith(GONE)
    assert listed.stderr.count("\n") == 1
    assert sleuth("rhyme", "t").stdout == "time\n"
    assert "error: sleuth: no such command 'prose'" in sleuth("prose").stderr
