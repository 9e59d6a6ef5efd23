"""Sleuth's own strict dialect.

A turn is free text (usually a thought) and then exactly one action; sampling stops at its closing tag. Each passage has
its own token budget, so the closing tag of the results is never cut. One invalid action gets a short hint and does not
use up a search.
"""

from sleuth.dialect import Dialect, Tags

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
