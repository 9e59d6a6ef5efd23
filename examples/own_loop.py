"""A training loop of one's own, of the parts that the stages are made of: own order of questions, own advantages.

    python examples/own_loop.py        (CPU, a minute; where `sleuth world runs/world` and `sleuth index` were run)

`models/tiny-base` learns to search. Questions of two hops come in as those of one hop are answered (the curriculum),
and an answer is compared with all answers of its kind in the step, not only with its siblings.
"""

import asyncio
import random
from pathlib import Path
from statistics import mean

from sleuth.answers.match import exact_match
from sleuth.data.questions import load_questions
from sleuth.dialect import dialect_of
from sleuth.engines.local.engine import LocalEngine
from sleuth.episodes.library import read_prompt
from sleuth.learn.batch import batch_of_groups
from sleuth.learn.losses import PolicyLoss
from sleuth.learn.models import load_model
from sleuth.learn.optim import Optimisation
from sleuth.learn.policy import Policy
from sleuth.render import Renderer
from sleuth.retrieval.bm25 import Bm25
from sleuth.rollout import Rollout
from sleuth.search.env import SearchEnv
from sleuth.types import Episode, Group, Score

DIALECT, PROMPT, CONTEXT = dialect_of("sleuth"), read_prompt("plain"), 512


def score_of(episode: Episode) -> Score:
    """Whether it ends with a golden answer."""
    last = episode.trajectory.actions[-1]
    is_right = last.kind == "answer" and exact_match(last.text, episode.task.golden_answers)
    return Score(value=float(is_right))


async def reward(group: Group) -> list[Score]:
    return [score_of(episode) for episode in group.episodes]


def train(model: str, world: Path, *, steps: int, prompts: int = 8, samples: int = 16) -> list[float]:
    """The share of right answers in each step."""
    model, tokenizer = load_model(model, dtype="float32", device="cpu")
    engine = LocalEngine(model, tokenizer, slots=prompts * samples, context=CONTEXT)
    policy = Policy(model, Optimisation(steps=steps, learning_rate=5e-4, warmup_steps=5))
    renderer, retriever = Renderer(tokenizer, DIALECT.tags), Bm25(world / "index")
    by_kind = {kind: [] for kind in ("one_hop", "two_hop")}
    for task in load_questions(world / "qa_train.jsonl"):
        by_kind[task.kind].append(task)
    draw, hard, history = random.Random(0), 0.0, list[float]()
    for step in range(steps):
        kinds = ["two_hop" if draw.random() < hard else "one_hop" for _ in range(prompts)]
        tasks = [draw.choice(by_kind[kind]) for kind in kinds]
        rollout = Rollout(engine=engine, renderer=renderer, context=CONTEXT, temperature=1.0, key=(0, 0, step))
        played = rollout.groups(
            tasks, lambda task, key: SearchEnv(task, DIALECT, PROMPT, retriever), samples=samples, reward=reward
        )
        groups = asyncio.run(played)
        usual = {
            kind: mean(score.value for group in groups if group.task.kind == kind for score in group.scores)
            for kind in {*kinds}
        }
        advantages = [[score.value - usual[group.task.kind] for score in group.scores] for group in groups]
        update = policy.update(batch_of_groups(groups, advantages, normalise="token"), PolicyLoss(), budget=2048)
        engine.publish(step + 1)
        history.append(mean(score.value for group in groups for score in group.scores))
        hard = min(0.5, hard + 0.1) if usual.get("one_hop", 1.0) > 0.6 else hard
        print(f"step {step}: {history[-1]:.3f} right, {hard:.1f} of two hops, entropy {update.entropy:.2f}")
    return history


if __name__ == "__main__":
    train("models/tiny-base", Path("runs/world"), steps=60)
