"""An agent of LangGraph with a calculator, as its documentation writes one."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from my_tools import calculator


async def solve(task, base_url: str, api_key: str, *, model: str = "policy") -> str:
    """The answer to the task's question."""
    chat = ChatOpenAI(model=model, base_url=base_url, api_key=api_key, max_retries=0)
    agent = create_agent(chat, tools=[calculator])
    result = await agent.ainvoke({"messages": [{"role": "user", "content": task.question}]})
    return result["messages"][-1].content
