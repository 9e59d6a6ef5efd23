"""The text behaviour of the search example in slime (github.com/THUDM/slime, `examples/search-r1`, its text mode).

Search-R1's tags and result lines, counted differently: `turns` is the total number of generations, invalid actions
included, with no extra one for the answer. N turns allow at most N - 1 useful searches: the example's 2 turns are one
search, and Search-R1's 2 searches are 3 turns here. A turn is limited to 512 tokens, and one that reaches the limit
ends the episode; results are not cut.

Departures:

- a failed retriever gives a missing score; in slime it may give an empty result that is scored normally;
- the query of the last turn is not searched, since its results would not be read;
- sampled tokens are never encoded again; slime sends the whole text at every turn, and its engine may encode its own
  output differently from how it was sampled;
- a token that extends beyond a closing tag stays whole, and an end-of-text token is kept;
- the sentence after an invalid action is ours; set `hint` to use the published one.
"""

from dataclasses import replace

from sleuth.search.dialects.search_r1 import SEARCH_R1

SLIME = replace(
    SEARCH_R1,
    name="slime",
    turns=2,
    searches=None,
    turn_tokens=512,
    results_tokens=None,
    cut_ends=True,
)
