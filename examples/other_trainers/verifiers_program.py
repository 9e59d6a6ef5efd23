"""An agent that calls the model by itself, such as `examples/own_code/agents_sdk.py`, in verifiers: a harness that runs
`python -m PROGRAM QUESTION` with the address and the key."""

import sys

import verifiers.v1 as vf


class AgentConfig(vf.HarnessConfig):
    program: str


class AgentHarness(vf.Harness[AgentConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ) -> vf.ProgramResult:
        _, question = self.resolve_text_prompt(data)
        command = [sys.executable, "-m", self.config.program, question or ""]
        return await runtime.run_program(command, {"OPENAI_BASE_URL": endpoint, "OPENAI_API_KEY": secret})


__all__ = ["AgentHarness"]
