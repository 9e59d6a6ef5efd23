"""Write a base model into the repository: `python tools/ship_base.py runs/base models/tiny-base`.

Weights are stored in bfloat16, so that the folder takes at most 2 MB.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from sleuth.learn.models import load_model
from sleuth.runs.checkpoints import latest_checkpoint

LIMIT_BYTES = 2_000_000


def write_model(run: Path, folder: Path, limit: int) -> Path:
    """Writes the last checkpoint of `run`, in bfloat16, to an empty `folder`; returns the checkpoint. Exits with one
    line if there is none, or if weights and tokenizer take more than `limit` bytes."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        sys.exit(f"{run}: has no checkpoint; train one first")
    model, tokenizer = load_model(str(checkpoint), dtype="float32", device="cpu")
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > limit:
        sys.exit(f"{folder}: {size:,} bytes of weights and tokenizer; the limit is {limit:,}")
    print(f"{folder}: {size:,} bytes of weights and tokenizer, from {checkpoint}")
    return checkpoint


def main(run: Path, folder: Path) -> None:
    """Convert the last checkpoint of `run` and write it to `folder`, with its card."""
    checkpoint = write_model(run, folder, LIMIT_BYTES)
    shutil.copy(checkpoint / "README.md", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
