"""Judges and teacher models of a recipe; the judges of a stage share a pool with a cache of verdicts."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Self

from sleuth.host.connections import Answer, RequestFailedError, ask_within
from sleuth.host.threads import to_stderr
from sleuth.judges.cache import (
    CachedJudge,
    CachedPairJudge,
    CachedSheetJudge,
    NamedJudge,
    NamedPairJudge,
    NamedSheetJudge,
    VerdictCache,
)
from sleuth.judges.json_client import JsonClient
from sleuth.judges.open_judge import OpenJudge
from sleuth.judges.pool import Ledger, base_url
from sleuth.judges.watched import SilentJudge, Watch, WatchedJudge, WatchedSheetJudge, agreement
from sleuth.recipe.judges import (
    JudgeFields,
    ServedModelRecipe,
    Skill,
)
from sleuth.recipe.rewards import WatchRecipe
from sleuth.types import SleuthError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUse:
    """A judge `of` a reward or a stage, such as "the rubric reward", and what it is asked."""

    of: str
    judge: JudgeFields
    skills: tuple[Skill, ...]


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
    return recipe.open()


def require_available(recipe: JudgeFields) -> None:
    """Waits while the servers of a judge are loading. Raises SleuthError if one does not answer or serves other
    models. Judges without servers need no check."""
    if isinstance(recipe, ServedModelRecipe):
        require_served(recipe)


def require_served(recipe: ServedModelRecipe) -> None:
    """Waits while the servers of a model are loading. Raises SleuthError if one does not answer or serves others."""
    if recipe.key_variable is not None and not recipe.key:
        raise SleuthError(f"key_variable = {recipe.key_variable!r}: there is no such variable in the environment")
    wait_until_served(recipe.urls, recipe.model, key=recipe.key, log=to_stderr)


def count_calls(ledger: Ledger | None, name: str, out: Path) -> None:
    """Goes on from the calls that earlier starts made of the model `name` for the file `out`, if these have a budget:
    they are counted beside it."""
    if ledger is not None and ledger.budget is not None:
        _count_in(VerdictCache(out.with_name(f"{out.name}.calls.sqlite")), ledger, name)


def _count_in(file: VerdictCache, ledger: Ledger, name: str) -> None:
    ledger.calls, ledger.count = file.calls(name), partial(file.count_call, name)


def open_client(recipe: ServedModelRecipe, out: Path) -> JsonClient:
    """The client of a teacher that writes the file `out`. Raises SleuthError if its server does not answer or serves
    other models."""
    require_served(recipe)
    ledger = Ledger(budget=recipe.budget)
    count_calls(ledger, recipe.model, out)
    return JsonClient(
        recipe.urls,
        recipe.model,
        timeout=recipe.seconds,
        at_once=recipe.at_once,
        max_tokens=recipe.max_tokens,
        extra=recipe.request,
        key=recipe.key,
        ledger=ledger,
    )


def identity_of(recipe: JudgeFields) -> str:
    """The identity of a judge that checkpoints carry. Contacts no server."""
    return recipe.open().identity


class JudgePool:
    """The judges of a stage, each opened once. Those that are models cache verdicts in the file `verdicts`, or in that
    of the judge's recipe. With `asks` false only cached verdicts are returned, and nothing is watched.

    Use it as a context manager, or `close` it.
    """

    def __init__(self, verdicts: Path, *, asks: bool = True) -> None:
        self._verdicts = verdicts
        self._asks = asks
        self._opened: dict[str, OpenJudge] = {}
        self._cached: dict[str, CachedJudge] = {}
        self._sheets: dict[str, CachedSheetJudge] = {}
        self._pairs: dict[str, CachedPairJudge] = {}
        self._watchers: dict[str, CachedJudge] = {}
        self._watches: list[Watch] = []
        self._files: dict[Path, VerdictCache] = {}

    @property
    def folder(self) -> Path:
        """The folder of its verdicts, and of the cards of its judges."""
        return self._verdicts.parent

    def open(self, recipe: JudgeFields) -> OpenJudge:
        """The judge without its cache. A budget of calls goes on from what earlier processes of the run have spent."""
        key = recipe.model_dump_json()
        if key not in self._opened:
            opened = self._opened[key] = recipe.open()
            if opened.ledger is not None and opened.ledger.budget is not None and self._asks:
                _count_in(self._file(self._verdicts), opened.ledger, opened.identity)
        return self._opened[key]

    def identity(self, recipe: JudgeFields) -> str:
        """As `identity_of`, with a judge that is opened once."""
        return self.open(recipe).identity

    def judge(self, recipe: JudgeFields, watch: WatchRecipe | None = None) -> NamedJudge:
        """The judge behind its cache if it has one, watched by another one if `watch` is given."""
        judge = self._cached_judge(recipe, self._cached)
        return WatchedJudge(judge, self._watch(watch)) if watch is not None and self._asks else judge

    def sheet_judge(self, recipe: JudgeFields, watch: WatchRecipe | None = None) -> NamedSheetJudge:
        """As `judge`, for whole sheets of criteria; the recipe's checks allow no other judge here."""
        opened, file = self.open(recipe), recipe.verdicts_in(self._verdicts)
        assert opened.sheets is not None
        assert file is not None
        key = recipe.model_dump_json()
        if key not in self._sheets:
            asked = opened.sheets if self._asks else SilentJudge(opened.identity)
            self._sheets[key] = CachedSheetJudge(asked, self._file(file), opened.limits)
        judge = self._sheets[key]
        return WatchedSheetJudge(judge, self._watch(watch)) if watch is not None and self._asks else judge

    def pair_judge(self, recipe: JudgeFields) -> NamedPairJudge:
        """As `judge`, for comparisons of two texts."""
        opened, file = self.open(recipe), recipe.verdicts_in(self._verdicts)
        assert opened.pairs is not None
        if file is None:
            return opened.pairs
        key = recipe.model_dump_json()
        if key not in self._pairs:
            asked = opened.pairs if self._asks else SilentJudge(opened.identity)
            self._pairs[key] = CachedPairJudge(asked, self._file(file))
        return self._pairs[key]

    def figures(self) -> dict[str, float | None]:
        """How the questions since the last call were answered, and how far watching judges agreed; without judges that
        have no cache, unless they are watched."""
        counts: Counter[str] = Counter()
        for judge in (*self._cached.values(), *self._sheets.values(), *self._pairs.values()):
            counts.update(judge.tally.take())
        figures: dict[str, float | None] = {f"judge_{name}": count for name, count in counts.items()}
        if self._watches:
            apart = [difference for watch in self._watches for difference in watch.take()]
            calls = sum(judge.tally.take()["asked"] for judge in self._watchers.values())
            figures |= {"watch_agreement": agreement(apart), "watch_verdicts": len(apart), "watch_asked": calls}
        return figures

    def _watch(self, watch: WatchRecipe) -> Watch:
        self._watches.append(Watch(self._cached_judge(watch.judge, self._watchers), watch.share))
        return self._watches[-1]

    def _cached_judge(self, recipe: JudgeFields, known: dict[str, CachedJudge]) -> NamedJudge:
        opened, file = self.open(recipe), recipe.verdicts_in(self._verdicts)
        if file is None:
            return opened.judge
        key = recipe.model_dump_json()
        if key not in known:
            asked = opened.judge if self._asks else SilentJudge(opened.identity)
            known[key] = CachedJudge(asked, self._file(file), opened.limits)
        return known[key]

    def close(self) -> None:
        """Closes the caches, which are written already."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _file(self, path: Path) -> VerdictCache:
        if path not in self._files:
            self._files[path] = VerdictCache(path)
        return self._files[path]


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
