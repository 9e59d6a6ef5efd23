"""`kind = "grpo"`: episodes that are played, and paid by how much better than their siblings they did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from sleuth.recipe.data import QuestionsRecipe
from sleuth.recipe.envs import RefineEnvRecipe, ThoughtEnvRecipe, TrainedEnvRecipe
from sleuth.recipe.loss import LossRecipe, SamplingRecipe
from sleuth.recipe.rewards import GainRecipe, RewardTable, SuffixRecipe
from sleuth.recipe.strict import NO_KIND, FilePath, Name, Row, StrictModel, combination
from sleuth.recipe.text import PlacesRecipe, TextRecipe
from sleuth.recipe.training import TrainingRecipe


class CreditRecipe(StrictModel):
    """Searches, or citations, are paid or charged by what they made likelier, in nats, as the policy sees it; added to
    the advantage of the tokens that asked, or that cite."""

    kind: Literal["search_gain", "citation_gain"]
    """`search_gain`, of right episodes: the words that a search found, wherever the policy wrote them later, with what
    it found and without it. `citation_gain`: a claim (and the thought before it), with the snippet that it cites and
    without it; of several the one that gains most."""
    margin: NonNegativeFloat = 1.0
    """Nats: what gained more mattered."""
    bonus: NonNegativeFloat = 0.0
    """What is added where it mattered."""
    penalty: NonNegativeFloat = 0.0
    """What is taken where it did not."""

    @combination
    def _does_something(self) -> Iterator[str]:
        if not self.bonus and not self.penalty:
            yield "bonus and penalty are both 0: nothing would be credited; set one, such as penalty = 0.2"


class PoolRecipe(StrictModel):
    """Servers of vLLM or SGLang that write with the learner's weights, which they read from a folder."""

    urls: Annotated[Row[str], Field(min_length=1)]
    """Where they are, such as `["http://10.0.0.2:30000", "http://10.0.0.3:30000"]`."""
    weights: FilePath | None = None
    """The folder through which weights go out: this process and every server see it under this very path. Absent:
    `weights` in the run's folder, which is enough on one machine."""
    requests_at_once: PositiveInt = 64
    """Turns under way at each server."""
    seconds: PositiveFloat = 300.0
    """How long a turn may take before it is asked for elsewhere."""
    unavailable_timeout: PositiveFloat = 600.0
    """How long the run waits while no server answers."""
    sleeps: bool = False
    """The servers give their memory back while the learner computes: for one card that both share."""
    max_policy_lag: Annotated[int, Field(ge=0, le=1)] = 0
    """How many updates the weights that write may lack: with 1, the episodes of a step are played while the step before
    is learned from."""

    @combination
    def _can_be_asked(self) -> Iterator[str]:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        if len(set(self.urls)) < len(self.urls):
            yield "urls names a server twice"
        if self.max_policy_lag and self.sleeps:
            yield (
                "sleeps = true and max_policy_lag = 1: servers that sleep while the learner computes cannot write then"
            )


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
    """The questions to play, or the texts to think about."""
    env: TrainedEnvRecipe
    """The environment that the policy talks to."""
    engine: PoolRecipe | None = None
    """Servers that write the episodes; absent: the engine in this process does."""
    sampling: SamplingRecipe = SamplingRecipe()
    """How the policy is sampled."""
    reward: Annotated[Row[RewardTable], Field(min_length=1)]
    """The rewards; an episode's score is their weighted sum."""
    credit: CreditRecipe | None = None
    """What a search or a citation is paid by itself; absent: nothing."""
    loss: LossRecipe = LossRecipe()
    """How scores become a gradient."""

    @combination
    def _group_fits(self) -> Iterator[str]:
        if self.min_siblings > self.samples_per_prompt:
            yield (
                f"min_siblings = {self.min_siblings} is more than samples_per_prompt = {self.samples_per_prompt}, "
                "so every group would be dropped"
            )
        key = "thought_tokens" if isinstance(self.env, ThoughtEnvRecipe) else "turn_tokens"
        tokens = getattr(self.env, key)
        if tokens is not None and tokens >= self.context:
            yield f"env.{key} = {tokens} leaves no room for a prompt in context = {self.context}"

    @combination
    def _texts_are_thought_about(self) -> Iterator[str]:
        thinks = isinstance(self.env, ThoughtEnvRecipe)
        if thinks and isinstance(self.data, QuestionsRecipe):
            yield 'data.kind is missing: an env that thinks reads texts; set kind = "places" or "text"'
        if not thinks and not isinstance(self.data, QuestionsRecipe):
            yield (f'data.kind = "{self.data.kind}" is for env.kind = "thought"; "{self.env.kind}" asks questions')

    @combination
    def _gains_are_known_late(self) -> Iterator[str]:
        gains = [reward for reward in self.reward if isinstance(reward, GainRecipe)]
        if len(gains) > 1:
            yield 'reward has kind = "gain" twice; leave one of them out'
        if gains and self.replace_no_signal:
            yield (
                f"replace_no_signal = {self.replace_no_signal} needs scores while episodes are played, and gains are "
                "told behind them all; leave it out"
            )

    @combination
    def _servers_have_whole_weights(self) -> Iterator[str]:
        if self.engine is not None and self.lora is not None:
            yield "lora is trained with the engine in this process; leave [stage.engine] out, or lora"

    @combination
    def _what_is_old_is_corrected(self) -> Iterator[str]:
        loss = self.loss
        if (
            self.engine is not None
            and self.engine.max_policy_lag
            and loss.old_logprobs == "learner"
            and loss.tis_cap is None
        ):
            yield (
                'engine.max_policy_lag = 1 trains on what older weights wrote, and loss.old_logprobs = "learner" takes '
                'it for its own: set loss.old_logprobs = "sampler", or loss.tis_cap'
            )

    @combination
    def _credit_has_something_to_pay(self) -> Iterator[str]:
        if self.credit is None:
            return
        kinds = {"search": "search_gain", "refine": "citation_gain"}
        if (kind := kinds.get(self.env.kind)) is None:
            yield "credit pays searches or citations, and an env that thinks makes none; leave it out"
        elif kind != self.credit.kind:
            yield (
                f'credit.kind = "{self.credit.kind}" has nothing to pay where env.kind = "{self.env.kind}"; '
                f'set "{kind}"'
            )

    @combination
    def _rewards_read_what_is_written(self) -> Iterator[str]:
        for index, reward in enumerate(self.reward):
            if isinstance(self.env, RefineEnvRecipe) and reward.kind not in REFINER_REWARDS:
                yield (
                    f'reward.{index}.kind = "{reward.kind}" reads the answer of a search; an env that refines is paid '
                    f"by {' or '.join(json.dumps(kind) for kind in REFINER_REWARDS)}"
                )
            elif (reward.kind in THOUGHT_REWARDS) != isinstance(self.env, ThoughtEnvRecipe):
                yield (
                    f'reward.{index}.kind = "{reward.kind}": an env that thinks is paid by '
                    f"{' or '.join(json.dumps(kind) for kind in THOUGHT_REWARDS)}, and no other is"
                )
            elif isinstance(reward, SuffixRecipe) and not getattr(self.env, "suffix_tokens", 0):
                yield (
                    f'reward.{index}.kind = "suffix" judges what is written behind a thought: set env.suffix_tokens, '
                    "such as 128"
                )
