"""The curriculum of "The second idea" in TRL: a stream of rows, with `shuffle_dataset=False` and `max_steps`."""

import random
from itertools import count

from datasets import IterableDataset


def sums(seed=0):
    for at in count():
        a, b = (random.Random(f"{seed} {at} {side}").randrange(10 + at // 8) for side in "ab")
        yield {"prompt": [{"role": "user", "content": f"{a} + {b}?"}], "answer": str(a + b), "level": at // 8}


rows = IterableDataset.from_generator(sums)
