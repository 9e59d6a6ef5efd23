"""The text behaviour of Search-R1 (arXiv:2503.09516) and its many ports.

The first complete search or answer element of a turn is the action, even with an empty query; results are one
`Doc i(Title: T) text` line each, directly between their tags, the title in the double quotes that the corpus stores; N
searches are followed by one last turn without search; an invalid action costs a turn; results are cut at 500 tokens as
one block.

Departures, all because sampled text is never encoded again:

- sampling stops at the first closing tag; the original samples 500 tokens and cuts the text afterwards. Two cases
  differ. After an answer element, a search element in the same turn is not part of the record (the action is the answer
  in both). A closing answer tag without an element, then a search element: a search there, an invalid action here;
- a sampled end-of-text token stays in the record (the original skips special tokens when it decodes);
- nothing is cut from the left of the context: a full context ends the episode with the stop reason `length`;
- the sentence after an invalid action is ours; set `hint` to use the published one;
- the 500 tokens are counted without the tags, and the closing tag is written separately, so that a cut never makes an
  episode malformed.
"""

from sleuth.dialect import Dialect, Tags

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
