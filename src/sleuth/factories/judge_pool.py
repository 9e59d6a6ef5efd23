"""The judges of a stage, with what they said before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Self

from sleuth.factories.judges import OpenJudge, unasked
from sleuth.judges.cache import (
    CachedJudge,
    CachedPairJudge,
    CachedSheetJudge,
    NamedJudge,
    NamedPairJudge,
    NamedSheetJudge,
    RetryLimits,
    VerdictCache,
)
from sleuth.judges.pool import ATTEMPTS
from sleuth.judges.watched import SilentJudge, Watch, WatchedJudge, WatchedSheetJudge, agreement
from sleuth.recipe.judges import HttpJudgeRecipe, JudgeRecipe, LexicalJudgeRecipe
from sleuth.recipe.rewards import WatchRecipe


class JudgePool:
    """The judges of a stage: each is opened once, however many rewards ask it, and what a costly one said is kept in
    the file `verdicts`, unless its recipe names another. With `asks` false nobody is asked for more than is kept, and
    nobody watches.

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

    def open(self, recipe: JudgeRecipe) -> OpenJudge:
        """The judge itself, who remembers nothing."""
        key = recipe.model_dump_json()
        if key not in self._opened:
            self._opened[key] = unasked(recipe)
        return self._opened[key]

    def identity(self, recipe: JudgeRecipe) -> str:
        """As `identity_of`, of a judge that is open already."""
        return self.open(recipe).identity

    def judge(self, recipe: JudgeRecipe, watch: WatchRecipe | None = None) -> NamedJudge:
        """The judge behind what it said before, watched as `watch` says; one that costs nothing as it is."""
        judge = self._remembering(recipe, self._cached)
        return WatchedJudge(judge, self._watch(watch)) if watch is not None and self._asks else judge

    def sheet_judge(self, recipe: JudgeRecipe, watch: WatchRecipe | None = None) -> NamedSheetJudge:
        """As `judge`, of one that takes whole sheets; any other cannot be named for them."""
        opened = self.open(recipe).sheets
        assert opened is not None
        assert isinstance(recipe, HttpJudgeRecipe)
        key = recipe.model_dump_json()
        if key not in self._sheets:
            asked = opened if self._asks else SilentJudge(opened.identity)
            self._sheets[key] = CachedSheetJudge(asked, self._file(recipe.verdicts), _retry_limits(recipe))
        judge = self._sheets[key]
        return WatchedSheetJudge(judge, self._watch(watch)) if watch is not None and self._asks else judge

    def pair_judge(self, recipe: HttpJudgeRecipe) -> NamedPairJudge:
        """As `judge`, of one that compares two."""
        key = recipe.model_dump_json()
        if key not in self._pairs:
            opened = self.open(recipe)
            assert opened.pairs is not None
            asked = opened.pairs if self._asks else SilentJudge(opened.identity)
            self._pairs[key] = CachedPairJudge(asked, self._file(recipe.verdicts))
        return self._pairs[key]

    def figures(self) -> dict[str, float | None]:
        """What became of the questions that were put since this was last called, and how far those who watch agreed;
        nothing of judges that cost nothing and are not watched."""
        counts: Counter[str] = Counter()
        for judge in (*self._cached.values(), *self._sheets.values(), *self._pairs.values()):
            counts.update(judge.tally.take())
        figures: dict[str, float | None] = {f"judge_{name}": count for name, count in counts.items()}
        if self._watches:
            apart = [difference for watch in self._watches for difference in watch.take()]
            asked = sum(judge.tally.take()["asked"] for judge in self._watchers.values())
            figures |= {"watch_agreement": agreement(apart), "watch_verdicts": len(apart), "watch_asked": asked}
        return figures

    def _watch(self, watch: WatchRecipe) -> Watch:
        self._watches.append(Watch(self._remembering(watch.judge, self._watchers), watch.share))
        return self._watches[-1]

    def _remembering(self, recipe: JudgeRecipe, known: dict[str, CachedJudge]) -> NamedJudge:
        opened = self.open(recipe).judge
        if isinstance(recipe, LexicalJudgeRecipe):
            return opened
        key = recipe.model_dump_json()
        if key not in known:
            asked = opened if self._asks else SilentJudge(opened.identity)
            known[key] = CachedJudge(asked, self._file(recipe.verdicts), _retry_limits(recipe))
        return known[key]

    def close(self) -> None:
        """What was said is in the files already."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _file(self, named: Path | None) -> VerdictCache:
        path = named or self._verdicts
        if path not in self._files:
            self._files[path] = VerdictCache(path)
        return self._files[path]


def _retry_limits(recipe: JudgeRecipe) -> RetryLimits:
    """With one behind HTTP for as long as one question may take, which is waited for in vain once and no more."""
    if not isinstance(recipe, HttpJudgeRecipe):
        return RetryLimits()
    return RetryLimits(retries=recipe.again, seconds=ATTEMPTS * recipe.seconds)
