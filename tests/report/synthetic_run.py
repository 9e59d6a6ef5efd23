"""A run folder as training leaves it, made up from a seed: curves that rise, rollouts that search, two evaluations."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sleuth.answers.suites import QuestionSet, Suite
from sleuth.dialect import DIALECTS
from sleuth.evaluation.evaluate import set_evaluation, suite_evaluation
from sleuth.evaluation.figures import measured_figures
from sleuth.evaluation.intervals import bootstrap_mean, share
from sleuth.runs.rollouts import write_rollouts
from sleuth.types import Action, Episode, Group, Passage, Score, Segment, Task, Trajectory

HOSTILE = '</script><script>alert("owned")</script><img src=x onerror=alert(1)>'

RECIPE = """\
name = "demo"
model = "tiny/base"
seed = 7

[[stage]]
kind = "evaluate"
name = "base"

[[stage]]
kind = "grpo"
name = "grpo"
steps = 300
prompts_per_step = 16
samples_per_prompt = 8
learning_rate = 0.001

[stage.env]
kind = "search"
dialect = "sleuth"
top_k = 3

[[stage.reward]]
kind = "answer"
scorer = "strict"

[[stage]]
kind = "evaluate"
name = "trained"
"""

NAMES = ("Ada Voss", "Bram Okafor", "Céline Duarte", "Ivo Stern", "Noor Haddad", "Tilda Marsh", "Wen Castellan")
TOWNS = ("Tarn", "Quell", "Osmere", "Lindfold", "Harrow's End", "Zürn")


def write_run(
    folder: Path, *, steps: int = 60, questions: int = 0, rollout_steps: tuple[int, ...] = (1, 30, 60), groups: int = 3
) -> Path:
    """A run in `folder`, which it returns; with no questions there are no evaluations, which are slow to compare."""
    rng = random.Random(0)
    for part in ("eval", "rollouts", "checkpoints/step-000060"):
        (folder / part).mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    versions = {"python": "3.11.2", "sleuth": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"}
    manifest = {"started": "2026-03-02T10:20:30+00:00", "versions": versions, "seed": 7, "continued": []}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    rows = [metrics_row(rng, step, steps) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "checkpoints/step-000060/tokenizer.json"))
    for step in rollout_steps:
        played = [rollout_group(rng, step / steps, 1000 * step + group, tokenizer) for group in range(groups)]
        advantages = [[-0.5, 0.25, 1.0, None]] * groups
        write_rollouts(folder / "rollouts" / f"step-{step:06d}.parquet", played, advantages)
    for name, skill in (("base", 0.1), ("trained", 0.8)) if questions else ():
        evaluation = evaluation_file(name, [record(random.Random(n), n, skill) for n in range(questions)])
        (folder / "eval" / f"{name}.json").write_text(json.dumps(evaluation), encoding="utf-8")
    return folder


def metrics_row(rng: random.Random, step: int, steps: int) -> dict[str, Any]:
    progress = 1 / (1 + math.exp(-10 * (step / steps - 0.4)))
    em = min(1.0, max(0.0, 0.08 + 0.75 * progress + rng.gauss(0, 0.05)))
    return {
        "stage": "grpo",
        "step": step,
        "reward_mean": em,
        "em": em,
        "searches_mean": 0.3 + 1.2 * progress + rng.gauss(0, 0.05),
        "response_tokens_mean": 24 + 20 * progress + rng.gauss(0, 2),
        "nonzero_advantage_fraction": min(1.0, max(0.0, 0.3 + progress * (1 - progress) * 2.4 + rng.gauss(0, 0.06))),
        "missing_fraction": 0.0,
        "entropy": 1.6 - 1.2 * progress + rng.gauss(0, 0.05),
        "kl": None,
        "clip_fraction": abs(rng.gauss(0.004, 0.003)),
        "sampler_learner_kl": abs(rng.gauss(3e-8, 1e-8)),
        "changed_weights_fraction": min(1.0, 0.98 + rng.gauss(0, 0.005)),
        "seconds_rollout": 2.1 + rng.gauss(0, 0.2),
        "seconds_update": 1.3 + rng.gauss(0, 0.1),
    }


def byte_tokenizer() -> Tokenizer:
    """One token a byte: characters of several bytes are several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def story(rng: random.Random, number: int, skill: float) -> dict[str, Any]:
    """One episode: the question, what was searched, found and answered, as text by author."""
    name, town = NAMES[number % len(NAMES)], TOWNS[number % len(TOWNS)]
    two_hop = number % 2 == 1
    question = f"where was {'the mother of ' if two_hop else ''}{name} born? ({number})"
    right, searched = rng.random() < skill, rng.random() < 0.2 + skill
    answer = town if right else rng.choice((*TOWNS[:-1], "nobody"))
    gold = {"id": str(number), "title": name, "text": f"{name} was born in {town}. {HOSTILE}", "score": 11.3}
    other = {"id": str(number + 1000), "title": "Osmere", "text": "Osmere is a town on the river Tarn.", "score": 4.1}
    segments = [("template", f"Question: {question}\n", 0)]
    actions = []
    if searched:
        found = [gold, other] if rng.random() < 0.3 + skill / 2 else [other]
        shown = "".join(f"{place}. {one['title']}: {one['text']}\n" for place, one in enumerate(found, start=1))
        segments += [("policy", f"<search> {name} </search>", 0), ("env", f"\n<passages>\n{shown}</passages>\n", 7)]
        actions.append({"kind": "search", "text": name, "passages": found})
    segments.append(("policy", f"<answer> {answer} </answer>", 0))
    actions.append({"kind": "answer", "text": answer, "passages": []})
    return {
        "id": f"q{number}",
        "question": question,
        "golden_answers": [town],
        "gold_passages": [gold["id"]],
        "kind": "two_hop" if two_hop else "one_hop",
        "em": float(answer == town),
        "note": "correct" if answer == town else "wrong",
        "answer": answer,
        "searches": int(searched),
        "stop": "answered",
        "segments": segments,
        "actions": actions,
    }


def record(rng: random.Random, number: int, skill: float) -> dict[str, Any]:
    """A row of an evaluation file."""
    told = story(rng, number, skill)
    return told | {"segments": [{"author": author, "text": text} for author, text, _ in told["segments"]]}


def evaluation_file(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {kind: [one for one in records if one["kind"] == kind] for kind in ("one_hop", "two_hop")}
    first_found = [[passage["id"] for passage in one["actions"][0]["passages"]] for one in records]
    recall = [one["gold_passages"][0] in found for one, found in zip(records, first_found, strict=True)]
    figures = {
        "em": share([one["em"] for one in records]),
        "em_one_hop": share([one["em"] for one in kinds["one_hop"]]),
        "em_two_hop": share([one["em"] for one in kinds["two_hop"]]),
        "searched": share([one["searches"] > 0 for one in records]),
        "searches_two_hop": bootstrap_mean([one["searches"] for one in kinds["two_hop"]]),
        "query_recall": share(recall),
    }
    return {
        "name": name,
        "model": f"checkpoints/{name}",
        **{key: measured.as_json() for key, measured in figures.items()},
        "outcomes": {note: sum(one["note"] == note for one in records) for note in ("correct", "wrong")},
        "temperature": 0.0,
        "records": records,
    }


def write_suite(file: Path, skills: dict[str, float], questions: int = 12, seed: int = 0, **more: Any) -> Path:
    """The evaluation of a suite and its sets beside it, as `ask_suite` writes them; `skills[set]` of it are right."""
    measured, sets = {}, []
    for name, skill in skills.items():
        rows = [record(random.Random(f"{seed} {name} {at}"), at, skill) for at in range(questions)]
        records = [row | {"id": f"{name}/{row['id']}"} for row in rows]
        tasks = tuple(Task(id=row["id"], question=row["question"], golden_answers=("",)) for row in records)
        sets.append(QuestionSet(name=name, split="test", tasks=tasks, total=questions))
        figures = {key: one.as_json() for key, one in measured_figures(records, DIALECTS["sleuth"]).items()}
        told = evaluation_file(f"{file.stem}@{name}", records) | figures | {"protocol": None} | more
        measured[name] = set_evaluation(told, sets[-1])
        file.with_name(f"{file.stem}@{name}.json").write_text(json.dumps(measured[name]), encoding="utf-8")
    suite = suite_evaluation(measured, Suite(place="sets", per_set=None, sets=tuple(sets)), name=file.stem)
    file.write_text(json.dumps(suite), encoding="utf-8")
    return file


def rollout_group(rng: random.Random, skill: float, number: int, tokenizer: Tokenizer) -> Group:
    """Four siblings; the last one's retriever failed."""
    stories = [story(rng, number, skill) for _ in range(4)]
    task = Task(
        **{key: stories[0][key] for key in ("id", "question", "kind")},
        golden_answers=tuple(stories[0]["golden_answers"]),
        gold_passages=tuple(stories[0]["gold_passages"]),
    )
    episodes = [
        Episode(task=task, sample=sample, trajectories=(trajectory(rng, told, tokenizer, failed=sample == 3),))
        for sample, told in enumerate(stories)
    ]
    scores = [Score(value=told["em"], parts={"em": told["em"]}, note=told["note"]) for told in stories[:3]]
    return Group(task=task, episodes=tuple(episodes), scores=(*scores, Score(value=None, note="retriever failed")))


def trajectory(rng: random.Random, told: dict[str, Any], tokenizer: Tokenizer, failed: bool) -> Trajectory:
    segments = []
    for author, text, cut in told["segments"]:
        tokens = tuple(tokenizer.encode(text).ids)
        sampled = author == "policy"
        logprobs = tuple(-abs(rng.gauss(0, 0.8)) for _ in tokens) if sampled else None
        version = 3 if sampled else None
        segments.append(
            Segment(author=author, text=text, tokens=tokens, logprobs=logprobs, policy_version=version, cut=cut)
        )
    actions = tuple(
        Action(**action | {"passages": tuple(Passage(**one) for one in action["passages"])})
        for action in told["actions"]
    )
    return Trajectory(segments=tuple(segments), actions=actions, stop="failed" if failed else "answered")
