r"""Search protocols as data: Sleuth's own, and those of published systems with all that departs from them.

Departures of all: sampled tokens are never decoded and encoded again, a token that extends beyond a closing tag stays
whole, an end-of-text token is kept, a full context ends the episode with the stop reason `length`, and a failed
retriever gives a missing score, where the originals show the model a sentence or nothing and score the rest. The
sentence after an invalid action is ours; set `hint` to use a published one.
"""

from __future__ import annotations

from dataclasses import replace

from sleuth.dialect import Dialect, Tags, Tool

SLEUTH = Dialect(
    name="sleuth",
    think=Tags(open="<think>", close="</think>"),
    search=Tags(open="<search>", close="</search>"),
    information=Tags(open="<information>", close="</information>"),
    answer=Tags(open="<answer>", close="</answer>"),
    stops=("</search>", "</answer>"),
    action=(
        r"(?s)\A(?:(?!</?(?:search|answer)>).)*"
        r"<(?P<kind>search|answer)>(?P<text>(?=\s*[^\s<])(?:(?!</?(?:search|answer)>).)+)</(?P=kind)>\Z"
    ),
    passage="[{rank}] {title} | {text}",
    before_results="\n",
    margin="\n",
    after_results="\n",
    hint="\nWrite one search or one answer.\n",
    hints=1,
    top_k=3,
    searches=3,
    turn_tokens=64,
    passage_tokens=160,
    results_tokens=None,
)
"""Sleuth's own strict dialect. A turn is free text (usually a thought) and then exactly one action; sampling stops at
its closing tag. Each passage has its own token budget, so the closing tag of the results is never cut. One invalid
action gets a short hint and does not use up a search."""

QUOTING = replace(
    SLEUTH,
    name="quoting",
    answer_inner=r'(?s)\A(?P<text>.*?\S)(?:\s*\["?(?P<sentence>[^\[\]]*?)"?\]\s*\Z|\s*\Z)',
)
"""Sleuth's own for models that follow instructions. An answer may go on, in brackets, with a sentence of the results
that says so, word for word: `<answer>Tarn [Ada Voss was born in Tarn.]</answer>` (arXiv:2203.11147). A sentence that no
result has cites nothing. In the prompt `quote_rules` an answer that was not found is `not in the documents`."""

SEARCH_R1 = replace(
    SLEUTH,
    name="search_r1",
    action=r"(?s)<(?P<kind>search|answer)>(?P<text>.*?)</(?P=kind)>",
    passage='Doc {rank}(Title: "{title}") {text}',
    before_results="\n\n",
    margin="",
    after_results="\n\n",
    hint=(
        "\nThat was not a valid action. To look something up I write <search> query </search>; "
        "to finish I write <answer> answer </answer>. Once more.\n"
    ),
    hints=None,
    searches=4,
    turn_tokens=500,
    passage_tokens=None,
    results_tokens=500,
)
"""Search-R1 (arXiv:2503.09516) and its many ports. The first complete search or answer element of a turn is the action,
even with an empty query; results are one `Doc i(Title: T) text` line each, directly between their tags, the title in
the double quotes that the corpus stores; N searches are followed by one last turn without search; an invalid action
costs a turn; results are cut at 500 tokens as one block.

Departures: sampling stops at the first closing tag; the original samples 500 tokens and cuts the text afterwards. Two
cases differ. After an answer element, a search element in the same turn is not part of the record (the action is the
answer in both). A closing answer tag without an element, then a search element: a search there, an invalid action here.
And the 500 tokens are counted without the tags, and the closing tag is written separately, so that a cut never makes an
episode malformed; nothing is cut from the left of the context."""

SLIME = replace(SEARCH_R1, name="slime", turns=2, searches=None, turn_tokens=512, results_tokens=None, cut_ends=True)
"""The search example in slime (github.com/THUDM/slime, `examples/search-r1`, its text mode). Search-R1's tags and
result lines, counted differently: `turns` is the total number of generations, invalid actions included, with no extra
one for the answer. N turns allow at most N - 1 useful searches: the example's 2 turns are one search, and Search-R1's 2
searches are 3 turns here. A turn is limited to 512 tokens, and one that reaches the limit ends the episode; results are
not cut.

Departure: the query of the last turn is not searched, since its results would not be read."""

RESEARCH = replace(
    SLEUTH,
    name="research",
    information=Tags(open="<result>", close="</result>"),
    stops=("</search>",),
    action=(  # a turn that ends with a closing search tag searches, by its last opening one; any other may answer
        r"(?s)\A(?=(.*</search>\Z)?).*?<(?P<kind>(?(1)search(?=>(?:(?!<search>).)*\Z)|answer))>"
        r"(?P<text>.*?)</(?P=kind)>"
    ),
    answer_inner=r"(?s).*\\boxed\{(?P<text>(?:[^{}]|\{[^{}]*\})*)\}",
    answer_form=r"\boxed{{{text}}}",
    passage='"{title}"\n{text}',
    between="\n\n",
    before_results=" ",
    after_results="",
    hint="",
    hints=0,
    top_k=5,
    searches=None,
    turns=5,
    turn_tokens=4096,
    response_tokens=4096,
    passage_tokens=None,
    results_tokens=256,
    cut_ends=True,
)
r"""What the code of reason-over-search trains and evaluates (github.com/GaurisankarJ/reason_over_search), in the tags
of ReSearch (arXiv:2503.19470). Its model card says `<information>`; its code has ` <result>`, with a space before it,
and five raw passages separated by blank lines, each as the corpus stores it (the title in double quotes, a line break,
the text), cut at 256 tokens as one block. Only a closing search tag stops a turn, so an answer ends with the
end-of-text token. The answer is the content of the last `\boxed{}` in the answer element. At most 4,096 tokens follow
the prompt, in at most five turns (its evaluation's limit; its training limits tokens only). Its prompts are system
messages: `prompt_role = "system"`.

Departures: the 256 tokens are counted without the tags (as in its evaluation), so that the closing tag is never cut.
Passages keep their trailing white space, while the original strips the block; no results are an empty block without the
empty line. A turn that neither searches nor answers ends the episode, as does one that closes a search it never opened;
the original's evaluation retries once with Search-R1's sentence, its training continues without one. The question is
the row's; the original strips it and adds a missing question mark."""

RESEARCH_CARD = replace(RESEARCH, name="research_card", information=SLEUTH.information)
"""What the model cards of reason-over-search say: results in Search-R1's tags. They state no other difference, and the
prompt that they name still announces `<result>`."""

SEARCH_TOOL = Tool(
    name="search",
    argument="query",
    several=False,
    description="Looks up passages of an encyclopaedia.",
    argument_description="What to look up, in a few words.",
)

CHAT = replace(
    SLEUTH,
    name="chat",
    frame="conversation",
    tool=SEARCH_TOOL,
    search=Tags(open="<tool_call>", close="</tool_call>"),
    information=Tags(open="<tool_response>", close="</tool_response>"),
    stops=(),
    action=(  # a call anywhere in the message takes precedence over an answer
        r"(?s)\A(?=(.*?<tool_call>.*?</tool_call>)?).*?<(?P<kind>(?(1)tool_call|answer))>"
        r"(?P<text>.*?)</(?P=kind)>"
    ),
    before_results="",
    margin="",
    after_results="",
    hint='This call could not be read. Write {"name": "search", "arguments": {"query": "a query"}} in its tags.',
    searches=4,
    turn_tokens=1024,
    passage_tokens=256,
    cut_ends=True,
)
"""A native tool call through the model's own chat template, in the format of Hermes, Qwen2.5 and Qwen3. The template
renders the tool's schema; the policy calls it with JSON in `<tool_call>` tags and ends its message. The passages are
returned as a tool message. A message without a call is the last, with the answer in answer tags. Several calls in one
message are executed in their order, each with a tool message; those beyond the limit are refused there.

The conversation is rendered again at every turn, so thoughts are kept or dropped as the template does. If rendering
only appends, the sampled tokens stay and the rest is added after them. If it changes earlier text (drops earlier
thoughts, or the empty thought before an answer without thinking), a new trajectory begins, in which all earlier turns
are untrained copies, and the episode consists of linked trajectories.

Departures from a chat completions server, which renders and encodes everything at every turn: only the copies are
encoded; the policy's text goes back into the template as written, not as parsed calls; the name of a control token in a
question, a passage or a copied turn is encoded as ordinary text; a message that ends with another end token than the
tokenizer's counts as ended with the tokenizer's."""

VERL = replace(
    CHAT,
    name="verl",
    frame="messages",
    tool=replace(
        SEARCH_TOOL,
        argument="query_list",
        several=True,
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
"""The search example of verl (github.com/volcengine/verl, `search_r1_like`, whose tool left its tree in 2026): a native
tool call in a chat. The policy writes `<tool_call>{"name": "search", "arguments": {"query_list": [...]}}</tool_call>`
and ends its message. The first call is executed with all its queries and returned as a tool message whose content is
JSON text, `{"result": "..."}`, with `Doc i (Title: T)`, a line break and the text of each passage, and `---` between
queries. A message without a call is the last, and so is the second: a call in it is not executed. At most 3,000 tokens
follow the prompt, which is a user message in the example: `prompt_role = "user"`.

Departures: messages are appended, as in verl, but with the chat template's white space between messages, which verl
loses (the line break after an end-of-message token). Results are not cut; verl's default cuts the JSON text to 256
characters. `results_tokens` cuts from the end. A call that cannot be parsed is answered with our `hint`; verl skips one
that is not JSON, which ends the episode, and answers one without queries with its own sentence. No results are an empty
result; verl has a sentence for it. verl's system message (its text is published there) is not sent."""

TOOLS_CHAT = replace(
    CHAT,
    name="tools",
    tool=None,
    hint='This call could not be read. Write {"name": "...", "arguments": {...}} in its tags.',
    passage_tokens=None,
    results_tokens=512,
)
"""Calls of any tools as JSON: `<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>`. As
in the dialect `chat`, tools and their results are messages."""

TOOLS_TEXT = replace(
    TOOLS_CHAT,
    frame="text",
    stops=("</tool_call>", "</answer>"),
    action=r"(?s)<(?P<kind>tool_call|answer)>(?P<text>(?=\s*[^\s<])(?:(?!</?(?:tool_call|answer)>).)+)</(?P=kind)>\Z",
    before_results="\n",
    after_results="\n",
    hint="\nWrite one tool call or one answer.\n",
    cut_ends=False,
)
"""The same without a chat template, where calls and results are part of the text: a turn ends at the closing tag of a
call or an answer, and the result follows between tags."""
