"""Who writes the episodes of a stage that trains: `[stage.engine]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Row, StrictModel, combination


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
    patience: PositiveFloat = 600.0
    """How long the run waits while no server answers."""
    sleeps: bool = False
    """The servers give their memory back while the learner computes: for one card that both share."""
    ahead: Annotated[int, Field(ge=0, le=1)] = 0
    """How many updates the weights that write may lack: with 1, the episodes of a step are played while the step before
    is learned from."""

    @combination
    def _can_be_asked(self) -> Iterator[str]:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        if len(set(self.urls)) < len(self.urls):
            yield "urls names a server twice"
        if self.ahead and self.sleeps:
            yield ("sleeps = true and ahead = 1: servers that sleep while the learner computes cannot write then")
