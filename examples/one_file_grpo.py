"""GRPO in one file: a tiny Qwen3 with random weights learns, from rewards alone, to copy a digit and to stop.

    python examples/one_file_grpo.py        (CPU, under a minute)

The prompt is `<start> d <arrow>` with d one of ten digits. The policy samples up to four tokens; `d <end>` is
right. A right first token earns half of the reward, stopping right after it the other half. No answer is ever shown.

A step reads as in the library, which this file does not import: sample a group of answers for each prompt, score them,
compare siblings (advantages), and raise or lower the probability of what was sampled (loss). Papers: GRPO
arXiv:2402.03300; separate clip bounds and the mean over all tokens of the batch, DAPO arXiv:2503.14476.

Letters: P prompts, G siblings of a prompt, B = P * G rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

DIGITS = 10  # token ids 0 to 9 are the digits themselves
START, ARROW, END = 10, 11, 12
VOCABULARY = 16  # the last three ids are unused: the policy has to learn not to sample them
PROMPT_TOKENS, ANSWER_TOKENS = 3, 4

PROMPTS, SIBLINGS, STEPS = 32, 8, 80
UPDATES_PER_STEP = 2  # the second one is off-policy, so clipping applies
LEARNING_RATE = 2e-3
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
STD_FLOOR = 1e-4


def tiny_model(seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 of two layers with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


# -- the task: prompts and rewards -----------------------------------------------------------------------------------


def draw_prompts(prompts: int, generator: torch.Generator) -> Tensor:
    """(P, 3): `<start> d <arrow>`."""
    digits = torch.randint(DIGITS, (prompts,), generator=generator)
    return torch.stack([torch.full_like(digits, START), digits, torch.full_like(digits, ARROW)], dim=1)


def score(tokens: Tensor) -> Tensor:
    """(B, T) -> (B,): half for the right digit, the other half for stopping right after it."""
    copied = tokens[:, PROMPT_TOKENS] == tokens[:, 1]
    stopped = tokens[:, PROMPT_TOKENS + 1] == END
    return 0.5 * copied + 0.5 * (copied & stopped)


# -- the policy: sampling and log-probabilities ----------------------------------------------------------------------


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Continue (B, 3) prompts to (B, T) tokens; returns them with the mask of those that the policy sampled.

    The mask is made here, where the author of each token is known: the END tokens that pad a finished row are not the
    policy's.
    """
    tokens, mask = prompts, torch.zeros_like(prompts, dtype=torch.bool)
    running = torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(ANSWER_TOKENS):
        distribution = model(tokens).logits[:, -1].softmax(dim=-1)  # (B, V); full support: no top-p, no top-k
        drawn = distribution.multinomial(1, generator=generator).squeeze(1)
        tokens = torch.cat([tokens, torch.where(running, drawn, END)[:, None]], dim=1)
        mask = torch.cat([mask, running[:, None]], dim=1)
        running = running & (drawn != END)
    return tokens, mask


def token_logprobs(model: Qwen3ForCausalLM, tokens: Tensor) -> Tensor:
    """(B, T): the log-probability of each token given those before it. Index t is of token t; the first is 0."""
    distribution = model(tokens[:, :-1]).logits.log_softmax(dim=-1)  # (B, T - 1, V); position t predicts token t + 1
    logprobs = distribution.gather(2, tokens[:, 1:, None]).squeeze(2)
    return torch.nn.functional.pad(logprobs, (1, 0))


# -- GRPO ------------------------------------------------------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """(P, G) -> (P, G): reward minus the group's mean, divided by the group's (population) standard deviation."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / rewards.std(dim=1, keepdim=True, correction=0).clamp(min=STD_FLOOR)


def grpo_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-mean over the policy's tokens of min(r A, clip(r) A), with r the probability ratio to the policy that sampled.

    `logprobs`, `old_logprobs`, `mask` are (B, T); `advantages` (B,): all tokens of an answer get the answer's.
    """
    ratio = (logprobs - old_logprobs).exp()  # (B, T)
    gain = ratio * advantages[:, None]
    clipped_gain = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages[:, None]
    return -(torch.minimum(gain, clipped_gain) * mask).sum() / mask.sum()


def train(steps: int, *, seed: int = 0, log_every: int = 10) -> list[float]:
    """Train from random weights; returns the mean reward of each step's samples. `log_every=0` prints nothing."""
    generator = torch.Generator().manual_seed(seed)
    model = tiny_model(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    history: list[float] = []
    for step in range(steps):
        prompts = draw_prompts(PROMPTS, generator).repeat_interleave(SIBLINGS, dim=0)  # (B, 3), siblings side by side
        tokens, mask = sample(model, prompts, generator)
        rewards = score(tokens)
        advantages = group_advantages(rewards.view(PROMPTS, SIBLINGS)).flatten()  # (B,)
        with torch.no_grad():
            old_logprobs = token_logprobs(model, tokens)
        for _ in range(UPDATES_PER_STEP):
            loss = grpo_loss(token_logprobs(model, tokens), old_logprobs, advantages, mask)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
        history.append(rewards.mean().item())
        if log_every and (step % log_every == 0 or step == steps - 1):
            print(f"step {step:3d}   reward {history[-1]:.3f}   answer tokens {mask.sum(1).float().mean():.2f}")
    return history


if __name__ == "__main__":
    started = time.perf_counter()
    train(STEPS)
    print(f"{time.perf_counter() - started:.1f} s. By chance a reward is about 0.03; a perfect one is 1.")
