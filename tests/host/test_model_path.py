"""A missing model is reported at once, after at most one request to the hub."""

from __future__ import annotations

from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from sleuth.host import model_path
from sleuth.host.model_path import require_model
from sleuth.render import load_tokenizer
from sleuth.retrieval.encoder import encoder_card
from sleuth.types import SleuthError


class Hub:
    """A hub with a fixed answer that records its requests."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[tuple[str, float]] = []

    def model_info(self, model: str, timeout: float) -> None:
        self.asked.append((model, timeout))
        if self.error is not None:
            raise self.error


def refusal(kind: type[Exception]) -> Exception:
    response = httpx.Response(503, request=httpx.Request("GET", "http://hub/api/models/a/b"))
    return kind("no", response=response)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no request to the hub yet."""
    monkeypatch.chdir(tmp_path)
    model_path._problem_on_hub.cache_clear()
    return tmp_path


def hub(monkeypatch: pytest.MonkeyPatch, error: Exception | None, cached: str | None = None) -> Hub:
    hub = Hub(error)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: cached)
    return hub


def complaint(path: str) -> str:
    with pytest.raises(SleuthError) as caught:
        require_model(path)
    return str(caught.value)


def test_a_folder_is_used_without_a_request_to_the_hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, ConnectionError()).asked
    (place / "models" / "mine").mkdir(parents=True)
    for path in ("models/mine", "models", str(place / "models" / "mine")):
        require_model(path)
    assert asked == []


@pytest.mark.parametrize("path", ["mine", "./mine", "models/of/mine", "../mine"])
def test_a_name_that_is_no_hub_id_is_only_searched_for_locally(
    place: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked = hub(monkeypatch, None).asked
    assert complaint(path) == f"{path}: no such folder here (from {place}), and a hub id would read OWNER/NAME"
    assert complaint(str(place / "x")) == f"{place / 'x'}: no such folder, and a hub id would read OWNER/NAME"
    assert asked == []


def test_a_name_whose_parent_folder_exists_is_not_searched_for_on_the_hub(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub(monkeypatch, None).asked
    (place / "runs").mkdir()
    expected = f"runs/mine: no such folder here (from {place}): there is a folder runs, and so it is not looked for on"
    assert complaint("runs/mine").startswith(expected)
    assert asked == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionError("Name or service not known"), "the hub could not be reached: Name or service not known"),
        (refusal(RepositoryNotFoundError), "the hub has no model of that name, or none that you may read"),
        (refusal(HfHubHTTPError), "the hub answers 503 Service Unavailable"),
    ],
)
def test_an_unknown_hub_id_is_requested_once_and_reported_as_neither_folder_nor_hub_id(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    asked = hub(monkeypatch, error).asked
    for _ in range(2):
        assert complaint("models/tiny") == f"models/tiny: no such folder here (from {place}), and {told}"
    assert asked == [("models/tiny", model_path.HUB_SECONDS)]


@pytest.mark.parametrize("error", [None, refusal(GatedRepoError)])
def test_a_model_on_the_hub_is_left_to_its_loader(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    hub(monkeypatch, error)
    require_model("owner/name")


def test_a_cached_model_is_used_when_the_hub_does_not_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    hub(monkeypatch, None, cached="/cache/config.json")
    require_model("owner/name")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    model_path._problem_on_hub.cache_clear()
    asked = hub(monkeypatch, ConnectionError(), cached="/cache/config.json").asked
    for _ in range(2):
        require_model("owner/name")
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    assert len(asked) == 1


def test_every_loader_checks_the_model_before_transformers_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, ConnectionError("no network")).asked
    for load in (load_tokenizer, encoder_card):
        with pytest.raises(SleuthError, match=r"^owner/name: no such folder here .* the hub could not be reached"):
            load("owner/name")
    with pytest.raises(SleuthError, match=r"^sentence-transformers/small: no such folder here"):
        encoder_card("small")
    assert [name for name, _ in asked] == ["owner/name", "sentence-transformers/small"]
