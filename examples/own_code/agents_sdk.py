"""An agent of the OpenAI Agents SDK with a calculator, as its documentation writes one."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from my_tools import calculator
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def solve(task, base_url: str, api_key: str, *, model: str = "policy") -> str:
    """The answer to the task's question."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    agent = Agent(
        name="Sums",
        tools=[function_tool(calculator)],
        model=OpenAIChatCompletionsModel(model=model, openai_client=client),
    )
    result = await Runner.run(agent, task.question)
    return result.final_output
