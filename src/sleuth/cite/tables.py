"""`[stage.env]` of kind "refine" and `[stage.credit]` of kind "citation_gain"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from sleuth.cite.dialect import REFINERS, Mode, refines
from sleuth.dialect import Dialect
from sleuth.judges.lexical import LexicalJudge
from sleuth.recipe.data import DataFields, Lengths
from sleuth.recipe.envs import EpisodeKind, RenderedEnvFields, Role
from sleuth.recipe.grpo import CreditFields
from sleuth.types import Judge, Reward, SleuthError, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.cite.env import RefineSetting
    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.eval_session import EvalOverrides

MODES: dict[str, Mode] = {dialect.name: mode for mode, dialect in REFINERS.items()}
"""Dialect -> mode."""
DEFAULT_REFINER = REFINERS["answer_only"].name
SEARCH_OPTIONS = {
    "index": "--index",
    "urls": "--retriever",
    "forced_search": "--forced-search",
    "closed_book": "--closed-book",
}
EVAL_JUDGE = LexicalJudge()
"""The judge of claims in evaluations."""


ANSWER, FULL = 1_024, 0.5
"""Tokens of the longest answer where the recipe does not limit it; the share of the limits that a typical answer, and
the evidence for it, fill."""


class RefineEnvRecipe(RenderedEnvFields):
    """The reasoning and the tool output of a search agent, to be rewritten as one answer with citations."""

    named: ClassVar[Mapping[str, str]] = {"prompt": "prompt"}
    plays: ClassVar[EpisodeKind] = "refiner"
    compares_answers: ClassVar[bool] = False
    needs_index: ClassVar[bool] = False
    kind: Literal["refine"]
    mode: Literal["answer_only", "thinking"] = "answer_only"
    """What the policy writes: the answer alone, or a thought and the answer."""
    prompt: str = "refine"
    """Name of a prompt that `sleuth prompts` lists, or the path of a text file. Its {question} is replaced by question,
    reasoning and tool output, or, with data.ask_with = "prompt", by the row's own message (prompt = "bare" consists of
    {question} alone)."""
    prompt_role: Role = "raw"
    """How the prompt is rendered: as plain text ("raw"), or as a message of the model's chat template."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Extra variables for the chat template, such as `{ enable_thinking = false }`."""
    turn_tokens: PositiveInt | None = None
    """Maximum number of tokens of the response; absent: 1024."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> RefineSetting:
        from sleuth.cite.env import refine_setting

        return refine_setting(self, tokenizer, tasks)

    def plain_dialect(self) -> Dialect:
        return REFINERS[self.mode]

    def lengths(self, context: int, data: DataFields | None) -> Lengths:
        longest = min(self.turn_tokens or ANSWER, context // 2)
        answer = round(FULL * longest)
        return Lengths(limit=context, prompt=round(FULL * (context - longest)), response=answer, sampled=answer)

    @classmethod
    def adopts(cls, dialect: Dialect | None, tasks: Sequence[Task]) -> bool:
        if dialect is not None:
            return refines(dialect)
        return bool(tasks) and all(task.evidence is not None for task in tasks)

    @classmethod
    def setting_to_evaluate(
        cls,
        card: ProtocolCard | None,
        changes: EvalOverrides,
        tokenizer: PreTrainedTokenizerFast,
        tasks: Sequence[Task],
    ) -> tuple[RefineSetting, list[str] | None]:
        from sleuth.cite.env import refine_setting
        from sleuth.episodes.setting import changes_of_card

        for key, option in SEARCH_OPTIONS.items():
            if getattr(changes, key):
                raise SleuthError(f"{option} is for models that search; this one refines the tool output of the rows")
        name = changes.dialect or (card.dialect.name if card else DEFAULT_REFINER)
        if name not in MODES:
            raise SleuthError(f"--dialect {name}: a refiner needs {' or '.join(MODES)}")
        role = changes.prompt_role or (card.prompt_role if card else "raw")
        same = card is not None and card.dialect.name == name
        env = cls(
            kind="refine",
            mode=MODES[name],
            prompt=changes.prompt or (card.prompt if card else "refine"),
            prompt_role=role,
            template_flags=card.template_flags if card and role != "raw" else {},
            turn_tokens=card.dialect.turn_tokens if card and same else None,
        )
        setting = refine_setting(env, tokenizer, tasks, card)
        return setting, changes_of_card(card, setting) if card and same else None

    @classmethod
    def measure(cls, dialect: Dialect, judge: Judge | None) -> Reward:
        """The citations, by the lexical judge if no other is given."""
        from sleuth.cite.citation_reward import CitationReward

        return CitationReward(dialect, judge or EVAL_JUDGE)

    @classmethod
    def filled_with(cls, dialect: Dialect) -> str:
        tag = dialect.information.open
        return f"At its {{question}} stand question, reasoning and, in {tag}, the tool output."


class CitationGainRecipe(CreditFields):
    """Credit for the tokens of a citing claim: by its log-probability (and that of the thought before it) with the
    cited snippet less without it; of several cited snippets, the largest gain."""

    credited: ClassVar[tuple[str, str]] = "refine", "citations"
    kind: Literal["citation_gain"]

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.cite.citation_gain import CitationCredit

        return [CitationCredit(self, inputs)]
