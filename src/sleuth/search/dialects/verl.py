"""The search example of verl (github.com/volcengine/verl, `search_r1_like`, whose tool left its tree in 2026): a native
tool call in a chat.

The policy writes `<tool_call>{"name": "search", "arguments": {"query_list": [...]}}</tool_call>` and ends its message.
The first call is executed with all its queries and returned as a tool message whose content is JSON text,
`{"result": "..."}`, with `Doc i (Title: T)`, a line break and the text of each passage, and `---` between queries. A
message without a call is the last, and so is the second: a call in it is not executed. At most 3,000 tokens follow the
prompt, which is a user message in the example: `prompt_role = "user"`.

Departures:

- messages are appended, as in verl, but with the chat template's white space between messages, which verl loses (the
  line break after an end-of-message token);
- results are not cut; verl's default cuts the JSON text to 256 characters. `results_tokens` cuts from the end;
- a call that cannot be parsed is answered with our `hint`. verl skips one that is not JSON, which ends the episode, and
  answers one without queries with its own sentence;
- no results are an empty result; verl has a sentence for it;
- a failed retriever gives a missing score; verl reports the failure to the model and scores the rest;
- verl's system message (its text is published there) is not sent.
"""

from dataclasses import replace

from sleuth.dialect import Tool
from sleuth.search.dialects.chat import CHAT

VERL = replace(
    CHAT,
    name="verl",
    frame="messages",
    tool=Tool(
        name="search",
        argument="query_list",
        several=True,
        description="Looks up passages of an encyclopaedia.",
        argument_description="What to look up: one or more short queries.",
    ),
    passage='Doc {rank} (Title: "{title}")\n{text}',
    between="\n\n",
    between_queries="\n---\n",
    results_key="result",
    hint='This call could not be read. Write {"name": "search", "arguments": {"query_list": ["a query"]}} in its tags.',
    hints=None,
    searches=None,
    turns=2,
    turn_tokens=3000,
    response_tokens=3000,
    passage_tokens=None,
)
