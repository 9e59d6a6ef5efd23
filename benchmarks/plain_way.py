"""Rollouts and updates of a Qwen3 that both ways compute: ours, and the plain way of models that only that one can.

`python -m benchmarks.plain_way` prints the processor time of each, and what the plain way takes of ours."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sleuth.engines.local.plain_engine import open_engine
from sleuth.learn.batch import Row, collate
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy, frozen_copy
from sleuth.render import load_tokenizer
from sleuth.types import Sampling

PROMPTS, SIBLINGS, TURNS = 8, 8, 3
PROMPT, WRITTEN, FOUND = 150, 30, 60
"""Tokens of a prompt, of a turn and of a tool's result."""
TOKENIZER = load_tokenizer(str(Path(__file__).parents[1] / "models" / "tiny-base"))
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4}

Result = TypeVar("Result")


def both_ways() -> dict[str, PreTrainedModel]:
    """The same weights twice; the config of one names a soft cap, which its own forward does not have."""
    torch.manual_seed(0)
    words = {"vocab_size": len(TOKENIZER), "eos_token_id": TOKENIZER.eos_token_id}
    config = Qwen3Config(**SHAPE, **words, num_key_value_heads=2, head_dim=64, initializer_range=0.05)
    ours = Qwen3ForCausalLM(config).eval()
    plain = frozen_copy(ours).requires_grad_()
    plain.config.attn_logit_softcapping = 50.0
    return {"ours": ours, "plain": plain}


def played(model: PreTrainedModel) -> list[Row]:
    """Episodes of some turns, in groups, with advantages drawn at random."""
    draw, engine = random.Random(0), open_engine(model, TOKENIZER, slots=PROMPTS * SIBLINGS, context=512)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(10, len(TOKENIZER)) for _ in range(count))

    async def episode(prompt: tuple[int, ...], number: int) -> Row:
        tokens, trained = prompt, [False] * PROMPT
        for turn in range(TURNS):
            sampling = Sampling(max_tokens=WRITTEN, temperature=1.0, key=(number, turn))
            written = (await engine.complete(tokens, sampling)).tokens
            found = words(FOUND) if turn < TURNS - 1 else ()
            tokens, trained = (*tokens, *written, *found), [*trained, *[True] * len(written), *[False] * len(found)]
        return Row(tokens=tokens, trained=tuple(trained), advantage=draw.uniform(-1, 1))

    async def every() -> list[Row]:
        prompts = [words(PROMPT) for _ in range(PROMPTS)]
        numbered = enumerate(prompt for prompt in prompts for _ in range(SIBLINGS))
        return await asyncio.gather(*(episode(prompt, number) for number, prompt in numbered))

    return asyncio.run(every())


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result, and the processor seconds of this process."""
    started = time.process_time()
    return work(), time.process_time() - started


def main() -> None:
    """The second round, when all is compiled, is printed."""
    models = both_ways()
    for last in (False, True):
        seconds = {}
        for way, model in models.items():
            rows, playing = timed(partial(played, model))
            policy = Policy(model, Optimisation(steps=10, learning_rate=1e-6))
            update, learning = timed(partial(policy.update, collate(rows), PolicyLoss(), budget=4096))
            seconds[way] = playing, learning
            if last:
                share = update.tokens_computed / update.tokens_dense
                print(f"{way}: rollouts {playing:.1f} s, update {learning:.1f} s, {share:.2f} of the tokens computed")
        rollouts, updates = (plain / ours for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True))
    print(f"plain / ours: rollouts {rollouts:.1f}, updates {updates:.1f}")


if __name__ == "__main__":
    main()
