"""A family of one's own: models learn to spell words backwards. Its tables; what plays is in spelling_env.py.

A recipe names it, `families = ["spelling:FAMILY"]`, or its package is installed and nothing has to be named.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from sleuth.dialect import Dialect
from sleuth.evaluation.figures import Figure
from sleuth.evaluation.intervals import bootstrap_mean
from sleuth.family import Family
from sleuth.host.atomic import write_text
from sleuth.recipe.envs import EnvFields
from sleuth.recipe.judges import JudgeFields, JudgeTable
from sleuth.recipe.rewards import RewardFields, RewardInputs
from sleuth.recipe.stage import StageFields
from sleuth.recipe.strict import FilePath
from sleuth.search.dialects import SLEUTH
from sleuth.types import Case, Judge, Reward, Task, Verdict

if TYPE_CHECKING:
    from spelling_env import SpellSetting
    from transformers import PreTrainedTokenizerFast

SPELLING = replace(
    SLEUTH,
    name="spelling",
    stops=("</answer>",),
    action=r"(?s)<(?P<kind>answer)>(?P<text>.*?)</answer>",
    passage="{text}",
    hint="",
    hints=0,
    top_k=1,
    searches=0,
    turns=1,
    turn_tokens=16,
    passage_tokens=None,
)


class SurveyStage(StageFields):
    """Counts the letters of the words that a model will spell, into `letters.json` of the run's folder."""

    named: ClassVar[Mapping[str, str]] = {"questions": "file"}
    kind: Literal["survey"]
    name: str = "survey"
    questions: FilePath
    """The rows of words."""

    def require_inputs(self, inputs: Any) -> list[Task]:
        return []

    def run(self, context: Any) -> Path:
        rows = map(json.loads, self.questions.read_text(encoding="utf-8").splitlines())
        letters = Counter("".join(row["question"] for row in rows))
        write_text(context.folder.path / "letters.json", json.dumps(letters, indent=1, sort_keys=True))
        return Path(context.model)


class SpellEnvRecipe(EnvFields):
    """One word to spell backwards."""

    compares_answers: ClassVar[bool] = False
    needs_index: ClassVar[bool] = False
    kind: Literal["spell"]
    turn_tokens: PositiveInt = 16
    """Maximum number of tokens of an answer."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> SpellSetting:
        from spelling_env import spell_setting

        return spell_setting(self.turn_tokens)

    def plain_dialect(self) -> Dialect:
        return SPELLING

    @classmethod
    def adopts(cls, dialect: Dialect | None, tasks: Sequence[Task]) -> bool:
        return dialect is not None and dialect.name == SPELLING.name

    @classmethod
    def setting_to_evaluate(
        cls, card: Any, changes: Any, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task]
    ) -> tuple[SpellSetting, list[str] | None]:
        from spelling_env import spell_setting

        from sleuth.episodes.setting import changes_of_card

        setting = spell_setting(card.dialect.turn_tokens if card else SPELLING.turn_tokens)
        return setting, changes_of_card(card, setting) if card else None

    @classmethod
    def measure(cls, dialect: Dialect, judge: Judge | None) -> Reward:
        from spelling_env import SpelledReward

        return SpelledReward(dialect, judge or LettersJudge())


class LettersJudge:
    """Judges how much of the evidence, a spelling, a claim repeats."""

    identity = "letters 1"

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """The share of the letters in their place."""
        return [Verdict(score=letters_in_place(case.claim, case.evidence)) for case in cases]


def letters_in_place(written: str, right: str) -> float:
    """`letters_in_place("tac", "tar") == 2 / 3`."""
    same = sum(one == other for one, other in zip(written, right, strict=False))
    return same / max(len(written), len(right), 1)


class LettersJudgeRecipe(JudgeFields):
    """Counts letters, without a model."""

    kind: Literal["letters"] = "letters"

    def open(self) -> Any:
        from sleuth.judges.factory import OpenJudge

        return OpenJudge(judge=LettersJudge())


class SpelledRecipe(RewardFields):
    """The share of the letters that stand where they should."""

    kind: Literal["spelled"]
    judge: JudgeTable = Field(default={"kind": "letters"}, validate_default=True)
    """Who counts them."""

    def build(self, inputs: RewardInputs) -> Reward:
        from spelling_env import SpelledReward

        return SpelledReward(inputs.dialect, inputs.judge_pool.judge(self.judge))


LETTERS = Figure(
    "letters",
    "Letters in place",
    "Share of a word's letters that stand where they should.",
    interval=bootstrap_mean,
    dialects=lambda dialect: dialect.name == SPELLING.name,
    alone=True,
    required=True,
    short="letters in place",
    in_steps=True,
    chart=("Letters in place", "mean over the step's episodes"),
)
FIGURES = (LETTERS,)


def words(file: Path, count: int = 64, seed: int = 0) -> None:
    """Write rows of words to spell backwards."""
    draw = random.Random(seed)
    made = ["".join(draw.choices("adeilnorst", k=draw.randint(2, 4))) for _ in range(count)]
    rows = [{"id": str(at), "question": word, "golden_answers": [word[::-1]]} for at, word in enumerate(made)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {file}: {count} words")


FAMILY = Family(
    name="spelling",
    about="Words, spelled backwards.",
    stages={"survey": "spelling:SurveyStage"},
    environments={"spell": "spelling:SpellEnvRecipe"},
    dialects={"spelling": "spelling:SPELLING"},
    rewards={"spelled": "spelling:SpelledRecipe"},
    judges={"letters": "spelling:LettersJudgeRecipe"},
    figures=("spelling:FIGURES",),
    verbs={"Spelling": {"words": "spelling:words"}},
)
