r"""What reason-over-search really trained and measured (github.com/GaurisankarJ/reason_over_search), in the tags of
ReSearch (arXiv:2503.19470).

Its model card says `<information>`; its code has ` <result>`, with a space before it, and five raw passages with blank
lines between them, each as the corpus stores it (the title in double quotes, a line break, the text), cut at 256 tokens
as one block. Only a closing search tag stops a turn, so that an answer ends with the end of the text. The answer is
what stands in `\boxed{}` in the answer element, the last if there are several. 4,096 tokens may follow the prompt, in
at most five turns (its evaluation's limit; its training had only the tokens). Its prompts are system messages:
`prompt_role = "system"`.

Departures:

- the 256 tokens are counted without the tags (as in its evaluation), so that a cut never takes the closing tag;
- passages keep their trailing white space, where the original strips the block; nothing found is an empty block
  without the empty line;
- a turn that neither searches nor answers ends the episode, one that closes a search which it never opened too; the
  original's evaluation asks once more with Search-R1's sentence, its training goes on in silence;
- a question is asked as its row has it; the original strips it and adds a missing question mark;
- a retriever that failed gives a missing score; the original shows the model a sentence and scores the rest;
- sampled tokens are never encoded again. A token that overhangs the closing tag stays whole.
"""

from sleuth.dialects.dialect import Dialect, Tags

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
