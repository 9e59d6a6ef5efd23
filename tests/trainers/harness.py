"""What verifiers' own harness needs to play offline: a chat server's replies, and an environment for its program."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf


def replied(body: dict[str, Any], message: dict[str, Any]) -> tuple[int, bytes]:
    """A chat completion, as a stream where the body asks for one."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return 200, json.dumps(head | {"object": "chat.completion", "choices": [choice]}).encode()
    deltas = [{"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": reason}]
    chunks = [json.dumps(head | {"choices": [{"index": 0, **delta}]}) for delta in deltas]
    return 200, "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]).encode()


def whole(body: dict[str, Any], text: str) -> tuple[int, bytes]:
    """A chat completion in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    return 200, json.dumps(answer).encode()


def offline_uv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the harness's program run in this environment; uv would make one from the network."""
    uv = folder / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$1" = python ] && echo {sys.executable}\nexit 0\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KEY", "none")


def config_of(url: str) -> tuple[Any, Any]:
    """The client of a chat server, and an agent that plays with it in this machine's processes."""
    client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="KEY")
    return client, vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig(), client=client)
