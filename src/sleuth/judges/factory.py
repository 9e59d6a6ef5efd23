"""Judges and teacher models of a recipe; the judges of a stage share a pool with a cache of verdicts."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar

from sleuth.host.connections import Answer, RequestFailedError, ask_within
from sleuth.host.threads import to_stderr
from sleuth.judges.cache import CachedJudge, NamedJudge, RetryLimits, VerdictCache
from sleuth.judges.http import JsonClient
from sleuth.judges.pool import Ledger, base_url
from sleuth.ranks import ALONE, Ranks
from sleuth.recipe.judges import (
    ON_SHEETS,
    UNAVAILABLE_SECONDS,
    UNSEEN,
    JudgeFields,
    ServedModelRecipe,
    Skill,
)
from sleuth.types import PairJudge, SheetJudge, SleuthError

Client = TypeVar("Client", bound=JsonClient)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJudge:
    """A judge that can be called. `sheets` is None for one that judges by one criterion at a time, `pairs` for one that
    compares nothing, `ledger` for one that makes no HTTP calls. `limits` are those of asking for a missing verdict."""

    judge: NamedJudge
    sheets: SheetJudge | None = None
    pairs: PairJudge | None = None
    ledger: Ledger | None = None
    limits: RetryLimits = field(default_factory=RetryLimits)

    @property
    def identity(self) -> str:
        """A name that changes whenever the same question could get another verdict."""
        return self.judge.identity

    @property
    def skills(self) -> tuple[Skill, ...]:
        """All that it can be asked. One that compares texts reads written criteria; others know statements alone."""
        statements = "claims", "criteria", f"criteria{UNSEEN}"
        written = "static_criteria", f"static_criteria{UNSEEN}"
        texts = "continuations", "suffixes"
        singly = (*statements, *written) if self.pairs is not None else statements
        on_sheets = tuple(f"{skill}{ON_SHEETS}" for skill in singly) if self.sheets is not None else ()
        return (*singly, *on_sheets, *(texts if self.pairs is not None else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUse:
    """A judge `of` a reward or a stage, such as "the rubric reward", and what it is asked."""

    of: str
    judge: JudgeFields
    skills: tuple[Skill, ...]


class Launcher:
    """Starts the servers that recipes of judges and teachers `launch`, while a run lasts: `start` is called with each
    recipe that is about to be asked, and returns the address of its server."""

    def __init__(self) -> None:
        self.start: Callable[[ServedModelRecipe], str] | None = None

    @contextmanager
    def starting(self, start: Callable[[ServedModelRecipe], str]) -> Iterator[None]:
        """Servers are started with `start` in this block."""
        self.start = start
        try:
            yield
        finally:
            self.start = None

    def urls_of(self, recipe: ServedModelRecipe) -> Sequence[str]:
        """The servers of a model, started if it has to be. Raises SleuthError if that fails, or no run is there."""
        if recipe.launch is None:
            return recipe.urls or ()
        if self.start is None:
            raise SleuthError(
                f'launch = "{recipe.launch}": only `sleuth train` starts {recipe.model}; start it, and name it in urls'
            )
        return [self.start(recipe)]


LAUNCHER = Launcher()
UNSTARTED = "http://127.0.0.1:0"
"""The address of a judge that is opened for its identity, before the run starts its server."""


def require_judge(use: JudgeUse) -> None:
    """Waits while the servers of a judge are loading. Raises SleuthError, with the name of its use, if it does not
    answer or cannot be loaded."""
    try:
        require_available(use.judge)
        identity_of(use.judge)
    except SleuthError as error:
        raise SleuthError(f"the judge of {use.of}: {error}") from None


def judge_of(recipe: JudgeFields) -> OpenJudge:
    """The judge of a recipe, after `require_available`. Raises SleuthError if it cannot be used."""
    require_available(recipe)
    return open_started(recipe)


def open_started(recipe: JudgeFields) -> OpenJudge:
    """The judge of a recipe, whose server is started if it has to be. Raises SleuthError if that fails."""
    if isinstance(recipe, ServedModelRecipe):
        recipe = recipe.model_copy(update={"urls": tuple(LAUNCHER.urls_of(recipe))})
    return recipe.open()


def require_available(recipe: JudgeFields | ServedModelRecipe) -> None:
    """Waits while the servers of a judge or a teacher are loading. Raises SleuthError if one does not answer or serves
    other models. Judges without servers need no check, and those that the run starts are waited for then."""
    if not isinstance(recipe, ServedModelRecipe) or recipe.launch is not None:
        return
    if recipe.key_variable is not None and not recipe.key:
        raise SleuthError(f"key_variable = {recipe.key_variable!r}: there is no such variable in the environment")
    wait_until_served(recipe.urls or (), recipe.model, key=recipe.key, log=to_stderr)


def count_calls(ledger: Ledger | None, name: str, out: Path) -> None:
    """Goes on from the calls that earlier starts made of the model `name` for the file `out`, if these have a budget:
    they are counted beside it."""
    if ledger is not None and ledger.budget is not None:
        _count_in(VerdictCache(out.with_name(f"{out.name}.calls.sqlite")), ledger, name)


def _count_in(file: VerdictCache, ledger: Ledger, name: str) -> None:
    assert ledger.budget is not None
    ledger.calls, ledger.count = file.calls(name), partial(file.count_call, name, ledger.budget)


def connect(recipe: ServedModelRecipe, kind: type[Client]) -> Client:
    """The client, or the judge, of a served model. Its servers are not contacted before the first question."""
    return kind(
        recipe.urls or [UNSTARTED],
        recipe.model,
        timeout=recipe.seconds,
        at_once=recipe.at_once,
        max_tokens=recipe.max_tokens,
        budget=recipe.budget,
        extra=recipe.request,
        key=recipe.key,
        restart=UNAVAILABLE_SECONDS if recipe.launch is not None else 0.0,
    )


def open_client(recipe: ServedModelRecipe, out: Path) -> JsonClient:
    """The client of a teacher that writes the file `out`. Raises SleuthError if its server does not answer or serves
    other models."""
    require_available(recipe)
    client = connect(recipe.model_copy(update={"urls": tuple(LAUNCHER.urls_of(recipe))}), JsonClient)
    count_calls(client.ledger, recipe.model, out)
    return client


def identity_of(recipe: JudgeFields) -> str:
    """The identity of a judge that checkpoints carry. Contacts no server."""
    return recipe.open().identity


class JudgePool:
    """The judges of a stage, each opened once. Those that are models cache verdicts in the file `verdicts`. With `asks`
    false only cached verdicts are returned.

    On several `ranks` each has a pool, and they call `start` together. Rank 0 has the file and starts servers; each
    makes its share of the concurrent calls, and none pays for what another has paid for. Use it as a context manager,
    or `close` it.
    """

    def __init__(self, verdicts: Path, *, asks: bool = True, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self._verdicts = verdicts
        self._asks = asks
        self._opened: dict[str, OpenJudge] = {}
        self._cached: dict[tuple[str, int], CachedJudge] = {}
        self._file: VerdictCache | None = None

    @property
    def folder(self) -> Path:
        """The folder of its verdicts, and of the cards of its judges."""
        return self._verdicts.parent

    def open(self, recipe: JudgeFields) -> OpenJudge:
        """The judge without its cache. A budget of calls goes on from what earlier processes of the run have spent."""
        key = recipe.model_dump_json()
        if key not in self._opened:
            if isinstance(recipe, ServedModelRecipe):
                recipe = recipe.model_copy(update={"at_once": max(1, recipe.at_once // self.ranks.world)})
            opened = self._opened[key] = open_started(recipe) if self._asks else recipe.open()
            if opened.ledger is not None and opened.ledger.budget is not None and self._asks:
                _count_in(self._cache(), opened.ledger, opened.identity)
        return self._opened[key]

    def start(self, uses: Iterable[JudgeUse]) -> None:
        """Opens the file of verdicts if one of these judges is a model, and starts the servers that have to be."""
        judges = [use.judge for use in uses]
        if any(judge.keeps_verdicts for judge in judges):
            self._cache()

        def start() -> None:
            for judge in judges:
                if isinstance(judge, ServedModelRecipe) and judge.launch is not None:
                    self.open(judge)

        self.ranks.broadcast(start)

    def identity(self, recipe: JudgeFields) -> str:
        """As `identity_of`, with a judge that is opened once."""
        return self.open(recipe).identity

    def judge(self, recipe: JudgeFields) -> NamedJudge:
        """The judge, behind its cache if it has one."""
        return self._behind_cache(recipe, self.open(recipe).judge)

    def sheet_judge(self, recipe: JudgeFields) -> SheetJudge:
        """As `judge`, for whole sheets of criteria or claims."""
        return self._behind_cache(recipe, self.open(recipe).sheets)

    def pair_judge(self, recipe: JudgeFields) -> PairJudge:
        """As `judge`, for comparisons of two texts."""
        return self._behind_cache(recipe, self.open(recipe).pairs)

    def _behind_cache(self, recipe: JudgeFields, judge: Any) -> Any:
        assert judge is not None  # the recipe's checks allow no other judge here
        if not recipe.keeps_verdicts:
            return judge
        key, opened = (recipe.model_dump_json(), id(judge)), self.open(recipe)
        if key not in self._cached:
            asked = judge if self._asks else None
            self._cached[key] = CachedJudge(asked, self._cache(), opened.limits, identity=opened.identity)
        return self._cached[key]

    def figures(self, ranks: Ranks = ALONE) -> dict[str, float | None]:
        """How the questions since the last call were answered, on all `ranks` together; without judges that have no
        cache."""
        counts: Counter[str] = Counter()
        for judge in self._cached.values():
            counts.update(judge.tally.take())
        total = ranks.all_reduce(counts)
        return {f"judge_{name}": int(total[name]) for name in counts}

    def seconds(self, ranks: Ranks = ALONE) -> dict[str, float | None]:
        """How long the slowest judge was waited for since the last call, on the slowest of `ranks`."""
        waited = ranks.all_gather([judge.clock.take() for judge in self._cached.values()])
        return {"seconds_judges": max(waited)} if waited else {}

    def close(self) -> None:
        """Closes the caches, which are written already."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _cache(self) -> VerdictCache:
        if self._file is None:
            self._file = self.ranks.shared(lambda: VerdictCache(self._verdicts))
        return self._file


HEALTH_SECONDS = 10.0  # timeout for the list of models
SHOWN_MODELS = 5  # in an error


def wait_until_served(
    urls: Sequence[str],
    model: str,
    *,
    key: str | None = None,
    log: Callable[[str], None] = lambda line: None,
    pause: float = 2.0,
) -> None:
    """Waits while servers are loading (status 503). Raises SleuthError if one does not answer or serves other models; a
    server that does not list its models is accepted."""
    for url in map(base_url, urls):
        while (response := _models(url, key)).status == HTTPStatus.SERVICE_UNAVAILABLE:
            log(f"{url}: loading its model")
            time.sleep(pause)
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise SleuthError(f"urls: {url} rejects the API key: it answered with status {response.status}")
        served = _names(response)
        if served and model not in served:
            nearest = difflib.get_close_matches(model, served, n=1)
            shown = nearest or served[:SHOWN_MODELS]
            raise SleuthError(f"model = {model!r}: {url} does not serve it; it serves {', '.join(shown)}")


def _models(url: str, key: str | None) -> Answer:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return ask_within(HEALTH_SECONDS, "GET", f"{url}/models", headers=headers)
    except (RequestFailedError, TimeoutError, ValueError) as error:
        raise SleuthError(
            f"urls: {url} does not answer ({error}); expected a server of OpenAI's chat completions, such as vLLM's"
        ) from None


def _names(response: Answer) -> list[str]:
    """The names in a list of models; empty if the response is not one."""
    try:
        return [str(listed["id"]) for listed in response.json()["data"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
