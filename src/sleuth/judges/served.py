"""Checks before a run that a judge's servers answer and serve its model."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus

from sleuth.host.connections import Answer, RequestFailedError, ask_within
from sleuth.judges.pool import base_url
from sleuth.types import SleuthError

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
