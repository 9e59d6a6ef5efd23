"""What a reader trained from nothing speaks (`data.kind = "reading"`, recipes/tiny/real.toml).

One search, whose passages begin with `<passage>` and stand between their numbers. The environment repeats the question
behind them, because only what stands there has read all of them; the same holds for the number behind a passage. The
answer ends with the number of the passage that it is from, `Tarn [2]`; one without a number cites nothing.
"""

import re
from dataclasses import replace

from sleuth.dialects.dialect import Tags
from sleuth.dialects.sleuth import SLEUTH

CITED = re.compile(r"\s*\[\d\]\s*\Z")
"""The number of the cited passage at the end of an answer."""

READING = replace(
    SLEUTH,
    name="reading",
    information=Tags(open="<passage>", close="</information>"),
    answer_inner=r"(?s)\A(?P<text>.*?\S)\s*(?:\[(?P<cited>\d)\]\s*)?\Z",
    passage=" [{rank}] {title} | {text} [{rank}]",
    between="<passage>",
    before_results="",
    margin="",
    after_results="",
    question_again="<question>",
    hint="",
    hints=0,
    searches=1,
    turn_tokens=48,
    passage_tokens=224,
)
