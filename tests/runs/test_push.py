"""What goes to the hub, and what is said when it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalTokenNotFoundError

from sleuth.host.checksums import SUMS, write_checksums
from sleuth.runs.push import push, require_push
from sleuth.types import SleuthError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Repositories by name: the files that the client would commit, which chooses them itself."""
    there: dict[str, Any] = {}

    class Hub(huggingface_hub.HfApi):
        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:  # type: ignore[override]
            assert private
            assert exist_ok
            there.setdefault(repo_id, [])

        def _validate_yaml(self, *_: Any, **__: Any) -> None: ...  # the hub would

        def create_commit(self, repo_id: str, operations: list[Any], **_: Any) -> Any:  # type: ignore[override]
            there[repo_id] = sorted(operation.path_in_repo for operation in operations)
            return SimpleNamespace(oid="", commit_url="https://hub/commit/0")

    monkeypatch.setattr(huggingface_hub.hf_api, "is_xet_available", lambda: False)  # which commits by another way
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return there


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint's folder with files of its user in it."""
    (tmp_path / "state").mkdir()
    (tmp_path / "adapter").mkdir()
    for name in (
        "model.safetensors",
        "protocol.json",
        "adapter/adapter_config.json",
        "state/state.pt",
        "state/run.json",
    ):
        (tmp_path / name).write_text(name)
    return tmp_path


OF_THE_USER = (".env", "notes.md", "id_rsa", "model.safetensors.bak", "run.log")
CONSISTS_OF = ["README.md", "adapter/adapter_config.json", "model.safetensors", "protocol.json"]


@pytest.mark.parametrize("sums", [[SUMS], []], ids=["listed", "of_an_earlier_version"])
def test_what_a_checkpoint_consists_of_is_pushed_and_nothing_else(
    hub: dict[str, Any], checkpoint: Path, sums: list[str]
) -> None:
    for _ in sums:
        write_checksums(checkpoint)
    for name in (*OF_THE_USER, "README.md"):
        (checkpoint / name).touch()
    require_push("me/sleuth-0.6b")
    assert hub == {"me/sleuth-0.6b": []}
    push(checkpoint, "me/sleuth-0.6b")
    assert hub == {"me/sleuth-0.6b": sorted([*CONSISTS_OF, *sums])}


def test_a_damaged_checkpoint_is_not_pushed(hub: dict[str, Any], checkpoint: Path) -> None:
    write_checksums(checkpoint)
    (checkpoint / "model.safetensors").write_text("another")
    with pytest.raises(SleuthError, match=r"model\.safetensors is not what was written"):
        push(checkpoint, "me/sleuth-0.6b")
    assert not hub


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
