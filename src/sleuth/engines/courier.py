"""How the learner's weights reach the servers of a pool, and how it is known that they did."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sleuth.engines.control import FIRST_WEIGHTS, NotLoadedError
from sleuth.engines.line import LineError, LostError, NotTakenError, RefusedError
from sleuth.engines.place import Place
from sleuth.engines.published import Published, publish
from sleuth.engines.server import TRIED
from sleuth.engines.wire import Aborted
from sleuth.engines.witness import WITNESS_TOKENS, require_same
from sleuth.render import encode
from sleuth.types import Sampling, SleuthError

RELOADS = 3
"""At one server, of the same weights, that has others than those it began with: somebody else gave it these."""


class WeightsDifferError(SleuthError):
    """A server has, or wrote with, other weights than the run's."""


class Courier:
    """Takes the weights of `model` through the folder `shared` to one server after the other. `reloaded` counts those
    that had lost them."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        shared: Path,
        *,
        ends: Collection[int],
        temperature: float,
        say: Callable[[str], None],
    ) -> None:
        self.reloaded = 0
        self._model = model
        self._witness = encode(tokenizer, TRIED)
        self._shared = shared
        self._ends = ends
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

    async def bring(self, place: Place) -> str | None:
        """Give a server new weights, waking it if it is asleep, and see by what it writes that it has them. Why it did
        not take them, if it does not answer; raises SleuthError where it answers, and did not."""
        place.reloads = 0
        try:
            await self._load(place)
            await self._hear_witness(place)
        except (LineError, Aborted) as error:
            place.suspect = True
            return f"{place.url} {error}"
        place.suspect = False
        return None

    async def lay_to_rest(self, place: Place) -> None:
        """Have a server give its memory back."""
        try:
            place.asleep = True
            await place.member.control.sleep(place.line)
        except RefusedError as error:
            raise SleuthError(
                f"{place.url}: cannot sleep ({error}); start it so that it can (docs/how-to/pool.md)"
            ) from None
        except NotTakenError:  # who comes back later is awake
            place.asleep, place.suspect = False, True
        except LineError:
            place.suspect = True

    async def admit(self, place: Place) -> None:
        """See that a server which may have been started anew has the weights, before it writes."""
        if place.known:
            return
        async with place.admitting:
            if place.known:
                return
            told = await place.weights()
            if told != self.published.label or not place.settled:
                place.reloads += place.settled and told != FIRST_WEIGHTS
                if place.reloads > RELOADS:
                    raise self._others(place, "would write", told)
                await self._load(place)
                self.reloaded += 1
                self._say(f"{place.url} came back with the weights {told!r} and was given {self.published.label!r}")
            place.suspect = False

    def require_ours(self, place: Place, label: str | None) -> None:
        """Raises LostError for a turn that a server wrote which was started anew, or may have been before it was asked;
        WeightsDifferError for one that was written with others."""
        if label == self.published.label:
            return
        if label == FIRST_WEIGHTS or not place.member.control.with_answers:
            raise LostError(f"was started anew: its weights are {label!r}")
        raise self._others(place, "wrote", label)

    async def _load(self, place: Place) -> None:
        """Have a server take the weights, and be awake. One that fails in the middle is not `settled`: it may be left
        paused, or half asleep, under the right label."""
        control = place.member.control
        place.settled = False
        place.loads += 1
        try:
            if place.asleep:
                await control.reserve(place.line)
            await control.load(place.line, self.published)
            if place.asleep:
                await control.wake(place.line)
        except NotLoadedError as error:
            raise SleuthError(
                f"{place.url}: {error}; every server must see the folder engine.weights under this very path"
            ) from None
        place.settled, place.asleep = True, False

    async def _hear_witness(self, place: Place) -> None:
        """Compare what the server writes with what the learner would."""
        prompt, temperature, published = self._witness, self._temperature, self.published
        sampling = Sampling(max_tokens=WITNESS_TOKENS, temperature=temperature, key=(published.version, 0, 0))
        written, label = await place.write(prompt, sampling, limit=WITNESS_TOKENS, ends=self._ends)
        self.require_ours(place, label)
        require_same(
            self._model,
            prompt,
            written.tokens or (),
            written.logprobs or (),
            temperature=temperature,
            who=place.url,
            label=published.label,
        )

    def _others(self, place: Place, what: str, label: str | None) -> WeightsDifferError:
        return WeightsDifferError(
            f"{place.url}: {what} with the weights {label!r}, and the run is at {self.published.label!r}; somebody "
            "else gave it others, or it lost ours: see that the pool serves this run alone, and start the run again"
        )
