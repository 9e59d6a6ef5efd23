"""What a reader trained from nothing speaks (`data.kind = "reading"`, recipes/tiny/real.toml).

One search, whose results are four sentences of the three passages found, those that share most words with the query;
each begins with `<passage>` and the title. The environment repeats the question behind them, because only what stands
there has read all of them. The answer goes on, in brackets, with the words that follow it in the passage that it
is from: `Tarn [, which rises in the Lozère.]` quotes `Tarn, which rises in the Lozère.` and cites the passage that says
so (citing by quoting: arXiv:2203.11147). A quotation that is in no passage cites nothing.
"""

import re
from dataclasses import replace

from sleuth.dialect import Tags
from sleuth.search.dialects import SLEUTH

QUOTED = re.compile(r"\s*\[(?P<quoted>[^\[\]]*)\]\s*\Z")
"""The words that an answer goes on with, at its end."""

READING = replace(
    SLEUTH,
    name="reading",
    information=Tags(open="<passage>", close="</information>"),
    answer_inner=rf"(?s)\A(?P<text>.*?\S)(?:{QUOTED.pattern}|\s*\Z)",
    passage=" {title} | {text}",
    between="<passage>",
    before_results="",
    margin="",
    after_results="",
    question_again="<question>",
    hint="",
    hints=0,
    searches=1,
    turn_tokens=64,
    top_k=4,
    sentences_of=3,
    passage_tokens=128,
)
