"""The kinds of `[[stage]]`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from sleuth.recipe.credit import CreditRecipe
from sleuth.recipe.data import AnsweredRowsRecipe, ExaminationRecipe, QuestionsRecipe, WorldTextRecipe
from sleuth.recipe.engines import PoolRecipe
from sleuth.recipe.envs import EnvRecipe, RefineEnvRecipe, Role, ThoughtEnvRecipe, TrainedEnvRecipe
from sleuth.recipe.rewards import GainRecipe, RewardTable, SuffixRecipe
from sleuth.recipe.strict import NO_KIND, Name, Row, StrictModel
from sleuth.recipe.text import HeldOutThoughtsRecipe, PlacesRecipe, TextRecipe, ThoughtTextRecipe
from sleuth.recipe.training import InitRecipe, TrainingRecipe

_NARROWED_SUPPORT = ("top_p", "top_k", "min_p")


class SamplingRecipe(StrictModel):
    """How the policy is sampled for training. The support is always the whole vocabulary."""

    temperature: PositiveFloat = 1.0
    """Divides the logits; log-probabilities are taken at the same temperature."""

    @model_validator(mode="before")
    @classmethod
    def _full_support(cls, table: Any) -> Any:
        for key in _NARROWED_SUPPORT:
            if isinstance(table, dict) and key in table:
                raise ValueError(
                    f"{key} is no key: sampling for RL needs full support, because a token that cannot be sampled has "
                    "no true log-probability, and the gradient would be of another policy than the one that sampled"
                )
        return table


NAMED_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.2},
    "dr_grpo": {"advantage": "centered", "normalise": "constant", "policy_loss": "clip", "ratio": "token",
                "clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"advantage": "grpo", "normalise": "token", "policy_loss": "clip", "ratio": "token",
             "clip_low": 0.2, "clip_high": 0.28},
    "gspo": {"advantage": "grpo", "normalise": "sequence", "policy_loss": "clip", "ratio": "sequence",
             "clip_low": 3e-4, "clip_high": 4e-4, "old": "sampler"},
    "cispo": {"advantage": "grpo", "normalise": "token", "policy_loss": "cispo", "ratio": "token",
              "clip_low": 1.0, "clip_high": 4.0, "old": "sampler"},
}  # fmt: skip
"""The published losses by name: arXiv:2402.03300, 2503.20783, 2503.14476, 2507.18071 and 2506.13585.

No KL is part of a name. GRPO's and Dr. GRPO's bounds are PPO's; CISPO's cap of 5 is ScaleRL's (arXiv:2510.13786).
"""


class LossRecipe(StrictModel):
    """How scores become a gradient."""

    setting: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] | None = None
    """A published loss by its name, which sets the keys that belong to it; a key that says otherwise is refused."""
    advantage: Literal["grpo", "centered", "rloo", "best"] = "grpo"
    """(x - mean) / std (arXiv:2402.03300), x - mean (arXiv:2503.20783), or leave-one-out (arXiv:2402.14740); or no
    policy gradient: the best of each group is imitated if its score is above 0 (with old = "learner")."""
    std_floor: PositiveFloat = 1e-4
    """The least standard deviation that "grpo" divides by."""
    policy_loss: Literal["clip", "cispo"] = "clip"
    """What the bounds do: end the pull of a token beyond them (arXiv:1707.06347), or cap its weight and keep the pull
    (arXiv:2506.13585)."""
    old: Literal["sampler", "learner"] = "sampler"
    """Where the ratio starts: what the sampler said of its tokens, or the learner before its update, so that it is 1
    and no bound acts."""
    ratio: Literal["token", "sequence"] = "token"
    """A ratio for each token, or one for all that the policy wrote in a trajectory (arXiv:2507.18071)."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low; 1 leaves that side free."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped above at 1 + clip_high (clip-higher: arXiv:2503.14476)."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence from the stage's first weights."""
    beta: NonNegativeFloat = 0.0
    """Weight of that divergence; 0 keeps no reference model."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Mean over the step's tokens (arXiv:2503.14476), mean of the sequences' means (arXiv:2402.03300), or each
    sequence's sum over `constant` (arXiv:2503.20783)."""
    constant: PositiveInt | None = None
    """The tokens that each sequence's sum is divided by; only with normalise = "constant"."""
    tis_cap: PositiveFloat | None = None
    """Cap of truncated importance weights between sampler and learner; absent leaves them out."""
    sequence_mask: Annotated[float, Field(gt=1)] | None = None
    """A trajectory whose tokens the learner holds more likely than the sampler did, or less, by more than this factor
    on their geometric mean, pulls on nothing; absent: all pull."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        named = NAMED_LOSSES.get(str(table.get("setting")), {}) if isinstance(table, dict) else {}
        for key, value in named.items():
            if table.get(key, value) != value:
                raise ValueError(
                    f'{key} = {json.dumps(table[key])} is not setting = "{table["setting"]}", where it is '
                    f"{json.dumps(value)}; leave one of the two out"
                )
        return named | table if named else table

    @model_validator(mode="after")
    def _old_fits(self) -> Self:
        if self.advantage == "best" and self.old != "learner":
            raise ValueError('old = "sampler" has no part in advantage = "best", which imitates; set old = "learner"')
        if self.old == "sampler" and self.tis_cap is not None:
            raise ValueError('tis_cap says what old = "sampler" says already; leave one of the two out')
        if self.old == "learner":
            for key, value in (("ratio", "sequence"), ("policy_loss", "cispo")):
                if getattr(self, key) == value:
                    raise ValueError(
                        f'{key} = "{value}" has no effect with old = "learner", where every ratio is 1; '
                        'it needs old = "sampler"'
                    )
        return self

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        if self.normalise == "constant" and self.constant is None:
            raise ValueError('constant is missing: normalise = "constant" divides by it')
        if self.normalise != "constant" and self.constant is not None:
            raise ValueError(
                f'constant = {self.constant} has no effect with normalise = "{self.normalise}"; leave it out'
            )
        return self


class SupervisedRecipe(TrainingRecipe):
    """Next-token prediction on rows of text."""

    kind: Literal["supervised"]
    name: Name = "supervised"
    """What the stage is called in the run folder."""
    rows_per_step: PositiveInt
    """Rows of text in one optimiser step."""
    source_weight: NonNegativeFloat = 1.0
    """How much a token of source text (passages, documents) counts in the loss, where a token of a teacher (answers,
    thoughts) counts 1; 0 teaches the teacher's alone."""
    data: Annotated[WorldTextRecipe | AnsweredRowsRecipe | TextRecipe | ThoughtTextRecipe, Field(discriminator="kind")]
    held_out: HeldOutThoughtsRecipe | None = None
    """Thoughts on which the stage measures, before its first step and at each save, what it has learned of them and
    what they do for the text behind them; absent: nothing."""
    env: RefineEnvRecipe | None = None
    """What asks for the answers of kind = "rows"; absent: that of the nearest `grpo` stage."""
    tokens: Row[Annotated[str, Field(min_length=1)]] = ()
    """Texts that become one token each, such as tags, where the tokenizer writes them with several."""
    init: InitRecipe | None = None
    """Start from random weights of this shape instead of the recipe's model."""

    @model_validator(mode="after")
    def _text_fits(self) -> Self:
        if self.env is not None and not isinstance(self.data, AnsweredRowsRecipe):
            raise ValueError(f'env asks for the answers of data.kind = "rows"; "{self.data.kind}" is taught as it is')
        if self.lora is not None and (self.init is not None or self.tokens):
            raise ValueError(
                "lora trains beside frozen weights: those of init and the embeddings of tokens would stay random; "
                "leave lora out here, and set it in a later stage"
            )
        if self.init is not None and not isinstance(self.data, WorldTextRecipe):
            raise ValueError('init has a tokenizer made for data.kind = "world_text" alone; name a model instead')
        if self.source_weight == 0 and isinstance(self.data, TextRecipe):
            raise ValueError('source_weight = 0 leaves nothing to learn of data.kind = "text", which is all source')
        return self


REFINER_REWARDS = ("citation", "rubric", "format")
"""What can be paid for where nothing is searched and no answer is short."""
THOUGHT_REWARDS = ("gain", "suffix")
"""What can be paid for where a text is thought about."""


def _kind_of_data(table: Any) -> str:
    kind = table.get("kind") if isinstance(table, dict) else getattr(table, "kind", None)
    return NO_KIND if kind is None else str(kind)


PlayedDataRecipe = Annotated[
    Annotated[QuestionsRecipe, Tag(NO_KIND)]
    | Annotated[TextRecipe, Tag("text")]
    | Annotated[PlacesRecipe, Tag("places")],
    Discriminator(_kind_of_data),
]
"""What episodes are about: questions, whose table says no kind, or texts to think about."""


class GrpoRecipe(TrainingRecipe):
    """Group-relative policy optimisation (arXiv:2402.03300) of episodes in an environment."""

    kind: Literal["grpo"]
    name: Name = "grpo"
    """What the stage is called in the run folder."""
    prompts_per_step: PositiveInt
    """Questions in one optimiser step."""
    samples_per_prompt: Annotated[int, Field(ge=2)]
    """Siblings of a group: episodes for one question."""
    slots: PositiveInt = 64
    """Episodes the in-process engine plays at once; changes memory and speed."""
    context: PositiveInt
    """Longest episode in tokens, prompt included."""
    replace_no_signal: NonNegativeInt = 0
    """How many more rounds of questions a step may play to replace groups whose scores are all equal."""
    probe_prompts: NonNegativeInt = 32
    """Questions of the small probe that the stage plays beside its training; 0 leaves it out."""
    red_team_every: NonNegativeInt = 50
    """Steps after which, with an env that refines, known tricks are scored by the reward beside honest answers, as they
    are before the first; 0 leaves that out."""
    min_siblings: Annotated[int, Field(ge=2)] = 2
    """A group with fewer scored siblings is dropped and counted."""
    max_missing_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Above this share of missing scores in a step the run stops and says why."""
    data: PlayedDataRecipe
    env: TrainedEnvRecipe
    engine: PoolRecipe | None = None
    """Servers that write the episodes; absent: the engine in this process does."""
    sampling: SamplingRecipe = SamplingRecipe()
    reward: Annotated[Row[RewardTable], Field(min_length=1)]
    credit: CreditRecipe | None = None
    """What a search or a citation is paid by itself; absent: nothing."""
    loss: LossRecipe = LossRecipe()

    @model_validator(mode="after")
    def _group_fits(self) -> Self:
        if self.min_siblings > self.samples_per_prompt:
            raise ValueError(
                f"min_siblings = {self.min_siblings} is more than samples_per_prompt = {self.samples_per_prompt}, "
                "so every group would be dropped"
            )
        key = "thought_tokens" if isinstance(self.env, ThoughtEnvRecipe) else "turn_tokens"
        tokens = getattr(self.env, key)
        if tokens is not None and tokens >= self.context:
            raise ValueError(f"env.{key} = {tokens} leaves no room for a prompt in context = {self.context}")
        return self

    @model_validator(mode="after")
    def _texts_are_thought_about(self) -> Self:
        thinks = isinstance(self.env, ThoughtEnvRecipe)
        if thinks and isinstance(self.data, QuestionsRecipe):
            raise ValueError('data.kind is missing: an env that thinks reads texts; set kind = "places" or "text"')
        if not thinks and not isinstance(self.data, QuestionsRecipe):
            raise ValueError(
                f'data.kind = "{self.data.kind}" is for env.kind = "thought"; "{self.env.kind}" asks questions'
            )
        return self

    @model_validator(mode="after")
    def _gains_are_known_late(self) -> Self:
        gains = [reward for reward in self.reward if isinstance(reward, GainRecipe)]
        if len(gains) > 1:
            raise ValueError('reward has kind = "gain" twice; leave one of them out')
        if gains and self.replace_no_signal:
            raise ValueError(
                f"replace_no_signal = {self.replace_no_signal} needs scores while episodes are played, and gains are "
                "told behind them all; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _servers_have_whole_weights(self) -> Self:
        if self.engine is not None and self.lora is not None:
            raise ValueError("lora is trained with the engine in this process; leave [stage.engine] out, or lora")
        return self

    @model_validator(mode="after")
    def _what_is_old_is_corrected(self) -> Self:
        loss = self.loss
        if self.engine is not None and self.engine.ahead and loss.old == "learner" and loss.tis_cap is None:
            raise ValueError(
                'engine.ahead = 1 trains on what older weights wrote, and loss.old = "learner" takes it for its own: '
                'set loss.old = "sampler", or loss.tis_cap'
            )
        return self

    @model_validator(mode="after")
    def _credit_has_something_to_pay(self) -> Self:
        if self.credit is None:
            return self
        kinds = {"search": "search_gain", "refine": "citation_gain"}
        if (kind := kinds.get(self.env.kind)) is None:
            raise ValueError("credit pays searches or citations, and an env that thinks makes none; leave it out")
        if kind != self.credit.kind:
            raise ValueError(
                f'credit.kind = "{self.credit.kind}" has nothing to pay where env.kind = "{self.env.kind}"; '
                f'set "{kind}"'
            )
        return self

    @model_validator(mode="after")
    def _rewards_read_what_is_written(self) -> Self:
        for index, reward in enumerate(self.reward if isinstance(self.env, RefineEnvRecipe) else ()):
            if reward.kind not in REFINER_REWARDS:
                raise ValueError(
                    f'reward.{index}.kind = "{reward.kind}" reads the answer of a search; an env that refines is paid '
                    f"by {' or '.join(json.dumps(kind) for kind in REFINER_REWARDS)}"
                )
        for index, reward in enumerate(self.reward):
            if (reward.kind in THOUGHT_REWARDS) != isinstance(self.env, ThoughtEnvRecipe):
                raise ValueError(
                    f'reward.{index}.kind = "{reward.kind}": an env that thinks is paid by '
                    f"{' or '.join(json.dumps(kind) for kind in THOUGHT_REWARDS)}, and no other is"
                )
            if isinstance(reward, SuffixRecipe) and not getattr(self.env, "suffix_tokens", 0):
                raise ValueError(
                    f'reward.{index}.kind = "suffix" judges what is written behind a thought: set env.suffix_tokens, '
                    "such as 128"
                )
        return self


class HintRecipe(StrictModel):
    """What makes a policy do what it never does by itself."""

    prompt: str | None = None
    """Another prompt than the one that is taught, such as "search_example"."""
    prompt_role: Role | None = None
    """Where that prompt stands, if elsewhere than the one that is taught."""
    dialect: str | None = None
    """A protocol that the policy knows already; what it does right there is taught in the words of the real one."""
    forced_search: bool = False
    """The first search is opened for the policy; it is taught to open it."""

    @model_validator(mode="after")
    def _hints(self) -> Self:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            raise ValueError(
                "prompt is missing: name one that hints, or a dialect that is known already, "
                "or set forced_search = true"
            )
        return self


class WarmStartRecipe(TrainingRecipe):
    """A beginning for a policy that never searches (rejection sampling: STaR, arXiv:2203.14465), or that does not know
    the protocol: it plays questions of the `grpo` stage that follows under a hint, and what was right is taught under
    the real prompt. Left out where the policy searches already."""

    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Only where a smaller share of the policy's own episodes searches."""
    taught: Literal["right", "answered"] = "right"
    """Which episodes: those that searched and were right, or all that ended with an answer, which is the protocol
    alone and no better habits."""
    prompts: PositiveInt = 128
    """Questions that are played, with and without the hint; all else is that of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question under the hint; absent: as many as the `grpo` stage samples."""
    rows_per_step: PositiveInt = 16
    """Right episodes in one optimiser step."""


class EvaluateRecipe(StrictModel):
    """Questions answered by the model as it stands; written to `eval/NAME.json`, and of a suite, each set
    to `eval/NAME@SET.json` and their mean to `eval/NAME.json`."""

    kind: Literal["evaluate"]
    name: Name
    """The file's name, such as "base" or "trained"."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    context: PositiveInt | None = None
    """Longest episode in tokens; absent: that of the nearest `grpo` stage."""
    data: ExaminationRecipe
    also_forced: bool = False
    """Ask once more with the first action replaced by an opening search tag, for `eval/NAME_forced.json`: what a
    trained model gains over that is more than the habit of searching."""
    env: EnvRecipe | None = None
    """Absent: that of the nearest `grpo` stage, so that what is measured is what was trained."""
