"""A native tool call through the model's own chat template, in the format of Hermes, Qwen2.5 and Qwen3.

The template renders the tool's schema; the policy calls it with JSON in `<tool_call>` tags and ends its message. The
passages are returned as a tool message. A message without a call is the last, with the answer in answer tags. Several
calls in one message are executed in their order, each with a tool message; those beyond the limit are refused there.

The conversation is rendered again at every turn, so thoughts are kept or dropped as the template does. If rendering
only appends, the sampled tokens stay and the rest is added after them. If it changes earlier text (drops earlier
thoughts, or the empty thought before an answer without thinking), a new trajectory begins, in which all earlier turns
are untrained copies, and the episode consists of linked trajectories.

Departures from a chat completions server, which renders and encodes everything at every turn:

- sampled tokens are never decoded and encoded again if the text is unchanged; only the copies are encoded;
- the policy's text goes back into the template as written, not as parsed calls;
- the name of a control token in a question, a passage or a copied turn is encoded as ordinary text;
- a message that ends with another end token than the tokenizer's counts as ended with the tokenizer's.
"""

from sleuth.dialect import Dialect, Tags, Tool

CHAT = Dialect(
    name="chat",
    frame="conversation",
    tool=Tool(
        name="search",
        argument="query",
        several=False,
        description="Looks up passages of an encyclopaedia.",
        argument_description="What to look up, in a few words.",
    ),
    think=Tags(open="<think>", close="</think>"),
    search=Tags(open="<tool_call>", close="</tool_call>"),
    information=Tags(open="<tool_response>", close="</tool_response>"),
    answer=Tags(open="<answer>", close="</answer>"),
    stops=(),
    action=(  # a call anywhere in the message takes precedence over an answer
        r"(?s)\A(?=(.*?<tool_call>.*?</tool_call>)?).*?<(?P<kind>(?(1)tool_call|answer))>"
        r"(?P<text>.*?)</(?P=kind)>"
    ),
    passage="[{rank}] {title} | {text}",
    before_results="",
    margin="",
    after_results="",
    hint='This call could not be read. Write {"name": "search", "arguments": {"query": "a query"}} in its tags.',
    hints=1,
    top_k=3,
    searches=4,
    turn_tokens=1024,
    passage_tokens=256,
    results_tokens=None,
    cut_ends=True,
)
