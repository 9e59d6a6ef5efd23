r"""What the code of reason-over-search trains and evaluates (github.com/GaurisankarJ/reason_over_search), in the tags
of ReSearch (arXiv:2503.19470).

Its model card says `<information>`; its code has ` <result>`, with a space before it, and five raw passages separated
by blank lines, each as the corpus stores it (the title in double quotes, a line break, the text), cut at 256 tokens as
one block. Only a closing search tag stops a turn, so an answer ends with the end-of-text token. The answer is the
content of the last `\boxed{}` in the answer element. At most 4,096 tokens follow the prompt, in at most five turns (its
evaluation's limit; its training limits tokens only). Its prompts are system messages: `prompt_role = "system"`.

Departures:

- the 256 tokens are counted without the tags (as in its evaluation), so that the closing tag is never cut;
- passages keep their trailing white space, while the original strips the block; no results are an empty block without
  the empty line;
- a turn that neither searches nor answers ends the episode, as does one that closes a search it never opened; the
  original's evaluation retries once with Search-R1's sentence, its training continues without one;
- the question is the row's; the original strips it and adds a missing question mark;
- a failed retriever gives a missing score; the original shows the model a sentence and scores the rest;
- sampled tokens are never encoded again. A token that extends beyond the closing tag stays whole.
"""

from dataclasses import replace

from sleuth.dialect import Dialect, Tags

RESEARCH = Dialect(
    name="research",
    think=Tags(open="<think>", close="</think>"),
    search=Tags(open="<search>", close="</search>"),
    information=Tags(open="<result>", close="</result>"),
    answer=Tags(open="<answer>", close="</answer>"),
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
    margin="\n",
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

RESEARCH_CARD = replace(RESEARCH, name="research_card", information=Tags(open="<information>", close="</information>"))
"""What the model cards of reason-over-search say: results in Search-R1's tags. They state no other difference, and the
prompt that they name still announces `<result>`."""
