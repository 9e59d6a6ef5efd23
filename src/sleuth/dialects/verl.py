"""The search example of verl (github.com/volcengine/verl, `search_r1_like`, whose tool left its tree in 2026): a native
tool call in a chat.

The policy writes `<tool_call>{"name": "search", "arguments": {"query_list": [...]}}</tool_call>` and ends its message.
The first call is looked up, all its queries together, and comes back as a tool message whose content is JSON text,
`{"result": "..."}`, with `Doc i (Title: T)`, a line break and the text of each passage, and `---` between queries. A
message without a call is the last, and so is the second: a call in it is not looked up. 3,000 tokens may follow the
prompt. The example asks in a user message: `prompt_role = "user"`.

Departures:

- messages are put behind what is there, as in verl, with the white space that the chat template has between messages;
  verl loses it (the line break after an end-of-message token);
- nothing cuts results, where verl's default cuts the JSON text to 256 characters; `results_tokens` cuts from the end;
- a call that cannot be read is answered in our words. verl passes over one that is no JSON, which ends the episode, and
  answers one without queries in its own words;
- nothing found is an empty result, where verl has a sentence;
- a retriever that failed gives a missing score; verl tells the model of it and scores the rest;
- verl's system message (its text is published there) is not sent.
"""

from dataclasses import replace

from sleuth.dialects.chat import CHAT
from sleuth.dialects.dialect import Tool

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
