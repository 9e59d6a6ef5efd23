"""What goes to the hub, and what is said when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalTokenNotFoundError

from sleuth.runs.push import push, require_push
from sleuth.types import SleuthError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Repositories by name: the files that were uploaded, by the client's own rules of what to ignore."""
    there: dict[str, Any] = {}

    class Hub:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
            assert private
            assert exist_ok
            there.setdefault(name, [])

        def upload_folder(self, *, repo_id: str, folder_path: Path, ignore_patterns: list[str], **_: str) -> None:
            files = [str(file.relative_to(folder_path)) for file in folder_path.rglob("*") if file.is_file()]
            there[repo_id] = sorted(huggingface_hub.utils.filter_repo_objects(files, ignore_patterns=ignore_patterns))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return there


def test_a_checkpoint_is_pushed_without_its_state(hub: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for name in ("model.safetensors", "README.md", "protocol.json", "state/state.pt"):
        (tmp_path / name).touch()
    require_push("me/sleuth-0.6b")
    assert hub == {"me/sleuth-0.6b": []}
    push(tmp_path, "me/sleuth-0.6b")
    assert hub == {"me/sleuth-0.6b": ["README.md", "model.safetensors", "protocol.json"]}


@pytest.mark.parametrize("name", ["sleuth", "/sleuth", "me/", "me/sleuth/2"])
def test_a_name_that_is_no_repository_is_refused_before_anything_is_asked(hub: dict[str, Any], name: str) -> None:
    with pytest.raises(SleuthError, match="should be OWNER/NAME"):
        require_push(name)
    assert not hub


def test_what_the_hub_refuses_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LocalTokenNotFoundError("Token is required, but no token found.\nLog in first.")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(SleuthError) as told:
        require_push("me/sleuth")
    assert "Token is required, but no token found. Log in first.; `hf auth login`" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    api = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9", token="none")  # nobody listens there
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(SleuthError, match="the upload failed"):
        require_push("me/sleuth")
