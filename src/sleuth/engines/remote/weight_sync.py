"""How the learner's weights reach the servers of a pool, and how it is known that they did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import fmean

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.remote.control import FIRST_WEIGHTS, NotLoadedError
from sleuth.engines.remote.http_client import HttpClientError, LostResponseError, RefusedError, UnavailableError
from sleuth.engines.remote.published import Published, publish
from sleuth.engines.remote.replica import EngineReplica
from sleuth.engines.remote.server import PROBE_TEXT
from sleuth.engines.remote.wire import Aborted
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

RELOADS = 3
"""At one server, of the same weights, that has others than those it began with: somebody else gave it these."""


class WeightsDifferError(SleuthError):
    """A server has, or wrote with, other weights than the run's."""


class WeightSync:
    """Takes the weights of `model` through the folder `shared` to one server after the other. `reloaded` counts those
    that had lost them."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        shared: Path,
        *,
        eos_ids: Collection[int],
        temperature: float,
        say: Callable[[str], None],
    ) -> None:
        self.reloaded = 0
        self._model = model
        self._check_prompt = encode(tokenizer, PROBE_TEXT)
        self._shared = shared
        self._eos_ids = eos_ids
        self._temperature = temperature
        self._say = say
        self._published: Published | None = None

    def write(self, version: int) -> None:
        """The weights as they are now, into the folder."""
        self._published = publish(self._model, self._shared, version)

    @property
    def published(self) -> Published:
        """The weights that every server should have."""
        assert self._published is not None  # nothing is asked of a pool before weights went out
        return self._published

    async def bring(self, replica: EngineReplica) -> str | None:
        """Give a server new weights, waking it if it is asleep, and see by what it writes that it has them. Why it did
        not take them, if it does not answer; raises SleuthError where it answers, and did not."""
        replica.reloads = 0
        try:
            await self._load(replica)
            await self._check_weights(replica)
        except (HttpClientError, Aborted) as error:
            replica.suspect = True
            return f"{replica.url} {error}"
        replica.suspect = False
        return None

    async def sleep(self, replica: EngineReplica) -> None:
        """Have a server give its memory back."""
        try:
            replica.asleep = True
            await replica.discovered.control.sleep(replica.client)
        except RefusedError as error:
            raise SleuthError(
                f"{replica.url}: cannot sleep ({error}); start it so that it can (docs/how-to/pool.md)"
            ) from None
        except UnavailableError:  # who comes back later is awake
            replica.asleep, replica.suspect = False, True
        except HttpClientError:
            replica.suspect = True

    async def admit(self, replica: EngineReplica) -> None:
        """See that a server which may have been started anew has the weights, before it writes."""
        if replica.known:
            return
        async with replica.admitting:
            if replica.known:
                return
            told = await replica.weights()
            if told != self.published.label or not replica.settled:
                replica.reloads += replica.settled and told != FIRST_WEIGHTS
                if replica.reloads > RELOADS:
                    raise self._others(replica, "would write", told)
                await self._load(replica)
                self.reloaded += 1
                self._say(f"{replica.url} came back with the weights {told!r} and was given {self.published.label!r}")
            replica.suspect = False

    def require_current_weights(self, replica: EngineReplica, label: str | None) -> None:
        """Raises LostError for a turn that a server wrote which was started anew, or may have been before it was asked;
        WeightsDifferError for one that was written with others."""
        if label == self.published.label:
            return
        if label == FIRST_WEIGHTS or not replica.discovered.control.labels_completions:
            raise LostResponseError(f"was started anew: its weights are {label!r}")
        raise self._others(replica, "wrote", label)

    async def _load(self, replica: EngineReplica) -> None:
        """Have a server take the weights, and be awake. One that fails in the middle is not `settled`: it may be left
        paused, or half asleep, under the right label."""
        control = replica.discovered.control
        replica.settled = False
        replica.loads += 1
        try:
            if replica.asleep:
                await control.reserve(replica.client)
            await control.load(replica.client, self.published)
            if replica.asleep:
                await control.wake(replica.client)
        except NotLoadedError as error:
            raise SleuthError(
                f"{replica.url}: {error}; every server must see the folder engine.weights under this very path"
            ) from None
        replica.settled, replica.asleep = True, False

    async def _check_weights(self, replica: EngineReplica) -> None:
        """Compare what the server writes with what the learner would."""
        prompt, temperature, published = self._check_prompt, self._temperature, self.published
        sampling = Sampling(max_tokens=CHECK_TOKENS, temperature=temperature, key=(published.version, 0, 0))
        written, label = await replica.write(prompt, sampling, limit=CHECK_TOKENS, eos_ids=self._eos_ids)
        self.require_current_weights(replica, label)
        require_same_weights(
            self._model,
            prompt,
            written.tokens or (),
            written.logprobs or (),
            temperature=temperature,
            who=replica.url,
            label=published.label,
        )

    def _others(self, replica: EngineReplica, what: str, label: str | None) -> WeightsDifferError:
        return WeightsDifferError(
            f"{replica.url}: {what} with the weights {label!r}, and the run is at {self.published.label!r}; somebody "
            "else gave it others, or it lost ours: see that the pool serves this run alone, and start the run again"
        )


CHECK_TOKENS = 16
APART = {torch.float32: 1e-3}
"""Mean difference of log-probabilities, in nats, that two programs may have with the same weights in float32."""
APART_BELOW_FLOAT32 = 0.1
"""The same in half precision, where sums depend on the order of their terms."""


def learner_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], written: Sequence[int], temperature: float
) -> list[float]:
    """What the learner holds of tokens written behind a prompt, at that temperature."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            tokens = torch.tensor([[*prompt, *written]], device=model.device)
            logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            told = (logits / temperature).log_softmax(dim=-1).gather(1, tokens[0, len(prompt) :, None])
    finally:
        model.train(training)
    return told[:, 0].tolist()


def require_same_weights(
    model: PreTrainedModel,
    prompt: Sequence[int],
    written: Sequence[int],
    told: Sequence[float],
    *,
    temperature: float,
    who: str,
    label: str,
) -> float:
    """How far apart server and learner are, in nats. Raises SleuthError where these are not the same weights."""
    ours = learner_logprobs(model, prompt, written, temperature)
    apart = fmean(abs(one - other) for one, other in zip(ours, told, strict=True))
    allowed = APART.get(model.dtype, APART_BELOW_FLOAT32)
    if not apart <= allowed:
        raise SleuthError(
            f"{who}: says that it has the weights {label}, and writes with others: its log-probabilities are "
            f"{apart:.3g} apart from the learner's, where {allowed:g} is allowed; nothing of it was trained on"
        )
    return apart
