"""The text behaviour of Search-R1 (arXiv:2503.09516) and of the many ports that copy it.

The first paired search-or-answer element of a turn is the action, an empty query included; the results are one
`Doc i(Title: T) text` line each, directly between their tags, the title in the double quotes that the corpus stores; N
searches are followed by one last turn in which searching is off; a bad action costs a turn; the results are cut at 500
tokens as one block.

Departures, all forced by never encoding sampled text again:

- sampling stops at the first closing tag, where the original samples 500 tokens and cuts the text afterwards: what
  would have been thrown away is never sampled. Two cases read differently. An answer element followed by a search
  element in the same turn: the action is the answer in both, but here the search is not part of the record. A closing
  answer tag with no element before it, then a search element: a search there, a bad action here;
- the end-of-text token stays in the record when it was sampled (the original skips special tokens when it decodes);
- nothing is cut from the left of the context: when the context is full the episode ends with the stop reason `length`;
- the sentence after a bad action is ours. The published one can be used by anyone who has it: `hint` is data;
- the 500 tokens are counted without the tags, and the closing tag is written by itself, so that a cut never makes an
  episode malformed through no fault of the policy.
"""

from sleuth.dialects.dialect import Dialect, Tags

SEARCH_R1 = Dialect(
    name="search_r1",
    think=Tags(open="<think>", close="</think>"),
    search=Tags(open="<search>", close="</search>"),
    information=Tags(open="<information>", close="</information>"),
    answer=Tags(open="<answer>", close="</answer>"),
    stops=("</search>", "</answer>"),
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
    top_k=3,
    searches=4,
    turn_tokens=500,
    passage_tokens=None,
    results_tokens=500,
)
