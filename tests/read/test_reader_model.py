"""The tiny reader that the repository carries, where the refiners' twin begins: it finds what a tool output tells of
entities that it was never taught about, and it is small."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch

from sleuth.cite.world_citing import NOWHERE
from sleuth.learn.models import load_model
from sleuth.render import Renderer
from sleuth.world.text import TextRows

READER = Path(__file__).parents[2] / "models" / "tiny-reader"
ROWS = 40


def test_the_reader_finds_the_facts_about_held_out_names() -> None:
    """Before any reward: from a base that reads worse, training with rewards leads to empty answers. Each thing that a
    teacher wrote is the model's likeliest, token by token, by what it is: found, nowhere, or the answer behind either.
    """
    model, tokenizer = load_model(str(READER), dtype="float32", device="cpu")
    renderer, drawn = Renderer(tokenizer), TextRows(2000, {"strangers": 1.0}, (7,), "test")
    told: dict[str, list[bool]] = defaultdict(list)
    for at in range(ROWS):
        row = drawn.row(at)
        segments = renderer.render_all(row)
        tokens = [token for segment in segments for token in segment.tokens]
        with torch.no_grad():
            likeliest = [-1, *model(input_ids=torch.tensor([tokens])).logits[0].argmax(-1).tolist()]
        end = 0
        for before, piece, segment in zip([None, *row], row, segments, strict=False):
            start, end = end, end + len(segment.tokens)
            if piece.author == "teacher" and before is not None:
                kind = "answer" if before.text.endswith("<answer>") else "nowhere" if piece.text == NOWHERE else "found"
                told[kind].append(likeliest[start:end] == tokens[start:end])
    assert told.keys() == {"found", "nowhere", "answer"}
    for kind, right in told.items():
        assert len(right) > 100, kind
        assert sum(right) / len(right) >= 0.9, kind


def test_the_reader_takes_at_most_two_megabytes() -> None:
    assert sum(file.stat().st_size for file in READER.iterdir()) <= 2_000_000
