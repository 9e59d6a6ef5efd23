"""A harness of verifiers that asks in this process: the program of its own costs seconds of a core an episode."""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult


class InProcessConfig(vf.HarnessConfig):
    pass


class InProcessHarness(vf.Harness[InProcessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any, *rest: Any
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*map(message_to_wire, prompt)]
        messages = [*([{"role": "system", "content": system}] if system else []), *asked]
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(timeout=60, verify=False) as client:  # certificates take 0.1 seconds to read
            body = {"model": ctx.model, "messages": messages}
            answer = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        return ProgramResult(exit_code=0 if answer.is_success else 1, stdout="", stderr=answer.text)


__all__ = ["InProcessHarness"]
