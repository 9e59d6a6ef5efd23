"""`[[stage.reward]]`: the rewards. The score of an episode is their weighted sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from sleuth.dialects import DIALECTS
from sleuth.recipe.envs import EnvFields, EpisodeKind
from sleuth.recipe.judges import (
    ON_SHEETS,
    UNSEEN,
    ContinuationJudgeTable,
    JudgeFields,
    JudgeTable,
    LexicalJudgeRecipe,
    Skill,
)
from sleuth.recipe.strict import FilePath, FunctionName, KindTable, OneOf, Row, StrictModel, combination


class AnswerSize(NamedTuple):
    """How many cases an answer has for a judge: `own` criteria of a row, `static` ones by their name in a recipe, and
    `cited`, those of its claims, which fill so many `cited_sheets`."""

    own: int
    static: Mapping[str, int]
    cited: int
    cited_sheets: int


class RewardFields(KindTable):
    """The keys of every reward, and what differs between rewards; the defaults are those of a function of an episode
    that searches."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent",)
    """The kinds of episodes that it can score."""
    is_scored_late: ClassVar[bool] = False
    """Whether its scores are known only after all episodes of a step have ended."""
    compares_answers: ClassVar[bool] = False
    """Whether it compares answers with golden ones, so that an episode is right or wrong."""
    methods: ClassVar[tuple[str, ...]] = ()
    """Published methods that it follows, by their names in `sleuth.runs.methods`."""
    figures: ClassVar[Mapping[str, str]] = {}
    """The parts of its scores, as `metrics.jsonl` names their means, and what each means."""

    weight: PositiveFloat = 1.0
    """Factor of this reward in the sum."""
    shuffle: bool = False
    """Control arm: permutes the scores within the step, so that they do not depend on their episodes."""

    @property
    def highest(self) -> float | None:
        """The highest score that it gives, before its weight; None where that is not known."""
        return 1.0

    @property
    def asks_sheets(self) -> bool:
        """Whether one call of the judge asks for several verdicts."""
        return False

    @property
    def answer_scorer(self) -> str | None:
        """The scorer of answers; None for a reward that does not compare answers with golden ones."""
        return None

    def judges(self) -> tuple[JudgeFields, ...]:
        """The judges that it asks: the one that decides, and the one that watches it."""
        named = getattr(self, "judge", None), getattr(getattr(self, "watch", None), "judge", None)
        return tuple(judge for judge in named if judge is not None)

    def skills(self, *, watching: bool = False) -> tuple[Skill, ...]:
        """What it asks of the judge that decides, or of the one that is `watching`."""
        return ()

    def unwatched(self) -> Self:
        """The reward without the watch of its judge, which changes no score."""
        return self.model_copy(update={"watch": None}) if getattr(self, "watch", None) else self

    def cases(self, size: AnswerSize) -> tuple[int, int, bool]:
        """For one answer: calls of the judge that decides, cases about which the one that watches is asked singly, and
        whether the row or the answer decides how many."""
        return 1, 1, False

    def judge_calls(self, size: AnswerSize) -> float:
        """Calls of models over HTTP for one answer, those of a judge that watches included."""
        paid, cases, _ = self.cases(size)
        asked = paid, getattr(getattr(self, "watch", None), "share", 0.0) * cases
        return float(sum(calls for calls, judge in zip(asked, self.judges(), strict=False) if judge.is_served))

    def misfit(self, env: EnvFields) -> str | None:
        """Why it cannot score the episodes of an environment; None if it can."""
        if env.plays in self.scores:
            return None
        plays = "refiner" if env.plays == "refiner" else "thought"
        tables = OneOf("rewards", lambda table: plays in table.scores).tables()
        fitting = sorted(f'"{table.own_kind()}"' for table in tables if not issubclass(table, FunctionFields))
        if env.plays == "refiner":
            return f'needs an env that searches; for env.kind = "refine" set {" or ".join(fitting)}'
        return (
            f'does not fit env.kind = "{getattr(env, "kind", "")}": {" and ".join(fitting)} need env.kind = "thought", '
            "which allows no other"
        )


class WatchRecipe(StrictModel):
    """A second judge, which does not affect the reward. Its agreement with the first judge on a share of the groups
    shows whether the policy exploits the first one (alarm `judge_divergence`)."""

    judge: JudgeTable
    """Another model, or another kind of judge, than the one that decides the reward."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the groups that both judge."""


class JudgedPartRecipe(RewardFields):
    """A reward that asks a judge."""

    kind: Any
    """Set by each such reward."""
    calls: Any
    """Set by each such reward."""
    judge: JudgeTable = LexicalJudgeRecipe()
    """The judge. "lexical" compares names, dates, numbers, words and negations on this machine; a table of
    kind "http" names a model."""
    watch: WatchRecipe | None = None
    """A second judge that watches the first; absent: none."""

    @combination
    def _another_watches(self) -> Iterator[str]:
        if self.watch is not None and self.watch.judge == self.judge:
            yield "watch.judge equals judge; name another one"

    @property
    def asks_sheets(self) -> bool:
        return self.calls.startswith("per_answer")

    @property
    def subjects(self) -> tuple[Skill, ...]:
        """What is judged, in however many calls."""
        return ("claims",)

    def skills(self, *, watching: bool = False) -> tuple[Skill, ...]:
        """The judge that watches is asked case by case."""
        sheets = self.asks_sheets and not watching
        singly = self.subjects if not sheets or self.calls != "per_answer" else ()
        return (*singly, *(f"{subject}{ON_SHEETS}" for subject in self.subjects if sheets))

    @combination
    def _sheets_have_effect(self) -> Iterator[str]:
        if self.asks_sheets and self.judge.kind != "http":
            yield f'calls = "{self.calls}" has no effect with judge.kind = "{self.judge.kind}", which makes no calls'


class AnswerRewardRecipe(RewardFields):
    """1 for a golden answer and 0 otherwise, or the score of a published scorer."""

    figures: ClassVar[Mapping[str, str]] = {
        "cites": "What the answer quotes is in a passage that was shown, in dialects whose answers cite.",
        "cited_holds_answer": "What a right answer quotes from a passage contains it; 0 if it cites none.",
        "cited_gold": "The passage that a right answer quotes is one that the question names; 0 if it cites none.",
    }
    compares_answers: ClassVar[bool] = True
    kind: Literal["answer"]
    scorer: Literal["strict", "search_r1", "search_r1_format", "slime", "verl", "skyrl", "research", "tinker"] = (
        "strict"
    )
    """How the answer is extracted from the trajectory: "strict" reads policy-written text alone; the others reproduce
    the scorer of that project, quirks included. Strict exact match is always logged too."""

    @property
    def answer_scorer(self) -> str:
        return self.scorer


class TokenF1Recipe(RewardFields):
    """F1 of the words of the answer against those of a golden answer."""

    figures: ClassVar[Mapping[str, str]] = {"token_f1": "F1 of the words that the answer shares with a golden one."}
    compares_answers: ClassVar[bool] = True
    kind: Literal["token_f1"]


class FormatRecipe(RewardFields):
    """1 if every turn is one closed thought and one action, and the last action is the answer."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    figures: ClassVar[Mapping[str, str]] = {"format": "Every turn is one closed thought and one action."}
    kind: Literal["format"]


class CitedAnswerRecipe(RewardFields):
    """1 for a golden answer that quotes words from a passage, as far as the policy was shown it, which contain the
    answer. For dialects whose answers quote, such as "reading"."""

    figures: ClassVar[Mapping[str, str]] = {
        "cited_answer": "The answer is a golden one, and what it quotes from a passage contains it."
    }
    compares_answers: ClassVar[bool] = True
    kind: Literal["cited_answer"]

    def misfit(self, env: EnvFields) -> str | None:
        """Also why no answer cites."""
        if (other := super().misfit(env)) is not None:
            return other
        name, citing = getattr(env, "dialect", ""), [one.name for one in DIALECTS.values() if one.cites]
        if name in citing or (name and name not in DIALECTS):  # one that does not exist is reported where it is named
            return None
        where = f'env.dialect = "{name}"' if name else f'env.kind = "{getattr(env, "kind", "")}"'
        dialects = " or ".join(f'"{one}"' for one in citing)
        return f"needs answers that quote a passage, which {where} has not; set env.dialect = {dialects}"


NAMED_SUMS: dict[str, dict[str, Any]] = {
    "recommended": {"citation_weight": 0.4, "format_gate": True, "padding_penalty": 0.1},
    "additive": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
    "convex": {"citation_weight": 0.2, "format_gate": False, "padding_penalty": 0.0},
}
"""Defaults of each `sum`: Sleuth's own, and the two readings of the published model cards, whose citation weight is 0.2
or 0.5 (S2 and S4)."""


class CitationRecipe(JudgedPartRecipe):
    """Whether the sources support every claim of the answer, combined with its content."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    methods: ClassVar[tuple[str, ...]] = ("dr_tulu",)
    figures: ClassVar[Mapping[str, str]] = {
        "claims": "Claims with a citation in an answer.",
        "citation_recall": "Share of claims that their citations support together.",
        "citation_precision": "Share of citations that support their claim and are needed for it.",
        "citation_precision_concatenated": "The same, by all citations of a claim at once.",
        "citation_f1": "Harmonic mean of citation recall and citation precision.",
        "valid_ids": "Share of cited ids that exist.",
        "invented_ids": "Share of cited ids that do not exist, in answers with claims.",
        "padding": "Share of an answer's words that are in no cited claim.",
        "abstained": "Share of answers that say that the evidence has no answer.",
        "right_abstention": "The same, of questions that the evidence does not answer.",
        "grounded": "A golden answer stands in a supported claim, or the abstention is right.",
        "well_formed": "The transcript has the form that the environment asks for.",
        "claim_precision": "Share of citations that are right, by the data's own table of claims and snippets.",
        "claim_recall": "Share of the claims asked for that the answer makes with a right citation, by that table.",
        "claim_f1": "Harmonic mean of the two.",
        "off_query": "Share of claims that a cited snippet states and that were not asked for.",
    }
    kind: Literal["citation"]
    sum: Literal["recommended", "additive", "convex"] = "recommended"
    """How content and citations are combined. "additive": content + weight x citations; "convex": (1 - weight) x
    content + weight x citations (the two readings of the published refiners); "recommended": the convex sum, times a
    gate (well-formed, cites only ids that exist) and a factor for brevity, less a penalty for padding."""
    formula: Literal["f1", "dr_tulu"] = "f1"
    """Score of the citations. "f1": F1 with leave-one-out precision (arXiv:2305.14627); "dr_tulu": 0.6 x F1 with the
    precision of all citations together + 0.4 x share of citations whose ids exist (arXiv:2511.19399)."""
    content: Literal["grounded", "none"] = "grounded"
    """Score of the content. "grounded": 1 if a supported claim contains a golden answer, where one is known; "none":
    no content score. Without a content score that of the citations takes its place."""
    citation_weight: Annotated[float, Field(ge=0, le=1)]
    """Weight of the citations in the sum; absent: 0.4 with sum = "recommended", 0.2 with the others."""
    format_gate: bool
    """Whether content scores only in a well-formed transcript; absent: true with sum = "recommended", where the gate
    covers the citations too, and false with the others."""
    padding_penalty: NonNegativeFloat
    """Subtracted in proportion to the share of uncited words; absent: 0.1 with sum = "recommended", else 0."""
    calls: Literal["per_claim", "per_answer", "per_answer_or_claim"] = "per_claim"
    """Judge calls: one for each claim, and two more for each of its citations if it has several; or one for all of
    these questions about an answer, if there are at most 16. "per_answer_or_claim": one for all, and single ones where
    it gave no verdicts."""
    verification_reward: PositiveFloat = 1.0
    """Multiplies the sum; 10 in the published refiners."""
    non_stop_penalty: bool = False
    """Scores 0 for an answer that the token budget cut off."""

    def cases(self, size: AnswerSize) -> tuple[int, int, bool]:
        return size.cited_sheets if self.asks_sheets else size.cited, size.cited, True

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        named = NAMED_SUMS.get(str(table.get("sum", "recommended")), {}) if isinstance(table, dict) else {}
        return named | table if named else table

    @combination
    def _sum_fits(self) -> Iterator[str]:
        if self.sum == "recommended" and not self.format_gate:
            yield 'format_gate = false does not fit sum = "recommended", which includes the gate; set sum = "convex"'
        if self.sum != "recommended" and self.padding_penalty:
            yield f'padding_penalty = {self.padding_penalty} has no effect with sum = "{self.sum}"; remove it'


class RubricRecipe(JudgedPartRecipe):
    """How far the answer fulfils written criteria."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner")
    methods: ClassVar[tuple[str, ...]] = ("dr_tulu",)
    figures: ClassVar[Mapping[str, str]] = {
        "rubric": "Score of the criteria, by the reward's `aggregation`.",
        "rubric_wanted": "Mean fulfilment of the wanted criteria.",
        "rubric_unwanted": "Mean fulfilment of the criteria that describe faults.",
        "citation_discipline": "Fulfilment of the published refiners' criterion of that name.",
        "off_query_padding": "Likewise.",
        "wrong_entity_confabulation": "Likewise.",
    }
    kind: Literal["rubric"]
    own: bool = True
    """Whether to judge by the question's own criteria (`rubrics` of its row)."""
    static: Literal["none", "refiner"] = "none"
    """Criteria for all answers. "refiner": the three of the published refiners (citation discipline, off-query padding,
    wrong-entity confabulation), in Sleuth's wording."""
    aggregation: Literal["mean_flipped", "positive_weights", "absolute_weights"] = "mean_flipped"
    """How criterion scores s become one. "mean_flipped": their mean, with 1 - s for faults; "positive_weights": their
    sum, with -s for faults, over the number of criteria that are not faults (arXiv:2511.19399); "absolute_weights": the
    same sum over the number of all criteria."""
    calls: Literal["per_rubric", "per_answer", "per_answer_or_rubric"] = "per_rubric"
    """Judge calls: one for each criterion, or one for all criteria of an answer. "per_answer_or_rubric": one for all,
    and single ones where it gave no verdicts."""
    sees_evidence: bool = True
    """Whether the judge sees the evidence that the answer was written from. The published judge saw the answer alone,
    and so could not check citations."""

    @property
    def subjects(self) -> tuple[Skill, ...]:
        subjects = [*(["criteria"] if self.own else []), *(["static_criteria"] if self.static != "none" else [])]
        return tuple(subject if self.sees_evidence else f"{subject}{UNSEEN}" for subject in subjects)

    def cases(self, size: AnswerSize) -> tuple[int, int, bool]:
        """Criteria; a whole sheet of them may be one call."""
        criteria = size.own * self.own + size.static.get(self.static, 0)
        return (1, criteria, False) if self.asks_sheets else (criteria, criteria, self.own)

    @combination
    def _judge_fits(self) -> Iterator[str]:
        if not self.own and self.static == "none":
            yield 'static is missing: own = false leaves no criterion; set static = "refiner"'
        for judge in (self.judge, *([self.watch.judge] if self.watch else [])):
            if self.static != "none" and judge.kind != "http":
                yield (
                    f'static = "{self.static}" needs judges of kind "http": kind = "{judge.kind}" only decides whether '
                    "an answer makes a statement"
                )


class SuffixRecipe(RewardFields):
    """1 if a judge, who never sees the thought, finds the suffix written after it equivalent to the true suffix
    (arXiv:2601.21343)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    methods: ClassVar[tuple[str, ...]] = ("self_improving",)
    figures: ClassVar[Mapping[str, str]] = {
        "suffix": "The continuation behind a thought says what the text says, by the judge.",
        "right": "The continuation behind a thought names the right ending, where the data knows it.",
    }
    kind: Literal["suffix"]
    judge: ContinuationJudgeTable
    """The judge: a table of kind "http" names a model; "ending" knows the right ending of world texts."""

    def skills(self, *, watching: bool = False) -> tuple[Skill, ...]:
        return ("suffixes",)

    def misfit(self, env: EnvFields) -> str | None:
        """Also why there is no suffix."""
        if (other := super().misfit(env)) is None and not getattr(env, "suffix_tokens", 0):
            return "judges the suffix written after a thought: set env.suffix_tokens, such as 128"
        return other


class GainRecipe(RewardFields):
    """Log-probability of the true suffix after the thought less that without it, in nats a token. Needs no judge."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("thought",)
    is_scored_late: ClassVar[bool] = True
    kind: Literal["gain"]
    scorer: Literal["frozen", "moving", "policy"] = "frozen"
    """Weights that compute the log-probabilities: those at the start of the stage ("frozen"), or an exponential moving
    average of the policy's ("moving"), both over an empty thought. "policy" is the information gain of RLP
    (arXiv:2510.01265): the policy itself after the thought, over its moving average without a thought and its tags. It
    rises too when the policy learns the suffix by heart."""
    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of the moving average, for each step; absent: 0.999. Not with scorer = "frozen"."""
    clip: PositiveFloat | None = 2.0
    """The gain is clipped to [-clip, clip], in nats a token."""
    floor: Annotated[float, Field(le=0)] | None = None
    """Lower bound of the gain; absent: -clip. With 0, harmful thoughts score as much as empty ones, so that the policy
    has no reason to prefer empty thoughts while most of its thoughts are still wrong."""

    @property
    def highest(self) -> None:
        """No thought is right or wrong."""

    @combination
    def _decay_and_floor_have_effect(self) -> Iterator[str]:
        if self.scorer == "frozen" and self.decay is not None:
            yield f'decay = {self.decay} has no effect with scorer = "frozen"; remove it'
        if self.floor is not None and self.clip is not None and self.floor <= -self.clip:
            yield f"floor = {self.floor:g} has no effect with clip = {self.clip:g}; remove it"


class FunctionFields(StrictModel):
    """The keys of a reward that a function of the user computes."""

    named: ClassVar[Mapping[str, str]] = {"function": "reward", "files": "files"}
    function: FunctionName
    """The function, `MODULE:NAME`. The module is looked for beside the recipe, in the current folder and among the
    installed packages. Its first parameter is an `episode`, or a whole `group`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the function, by name: `[stage.reward.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the function reads, hashed like code: a run does not continue when one has changed."""
    seconds: PositiveFloat = 60.0
    """Timeout of a call in seconds; then the score is missing."""


def unfit_rewards(rewards: Sequence[RewardFields], env: EnvFields) -> Iterator[str]:
    """A line about each reward that cannot score the episodes of an environment."""
    for index, reward in enumerate(rewards):
        if (problem := reward.misfit(env)) is not None:
            yield f'reward.{index}.kind = "{getattr(reward, "kind", "")}" {problem}'


def clashing_figures(rewards: Sequence[StrictModel]) -> Iterator[str]:
    """A sentence for each function of the user whose figures would have the name of another reward's."""
    scorers = get_args(AnswerRewardRecipe.model_fields["scorer"].annotation)
    names: dict[str, int] = {}
    for index, reward in enumerate(rewards):
        if isinstance(reward, FunctionFields):
            name = reward.function.rpartition(":")[2]
            if name in names or name in scorers:
                other = f"that of reward.{names[name]}" if name in names else "a published scorer"
                yield (
                    f"reward.{index}.function is called {name}, as {other}, and both would be the figure score_{name}; "
                    "rename one of them"
                )
            names.setdefault(name, index)


class FunctionRewardRecipe(FunctionFields, RewardFields):
    """The number that a function of your own returns for an episode (docs/how-to/own_code.md)."""

    scores: ClassVar[tuple[EpisodeKind, ...]] = ("agent", "refiner", "thought")
    kind: Literal["python"]

    @property
    def highest(self) -> None:
        """Only its author knows."""


RewardTable = Annotated[RewardFields, OneOf("rewards")]
"""One `[[stage.reward]]`."""
