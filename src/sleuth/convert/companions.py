"""What stands beside the weights in a Hugging Face folder: configuration and tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from sleuth.types import SleuthError

CONFIG = "config.json"
COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*.jinja",
)


def config_folder(source: Path, given: Path | None) -> Path:
    """The folder with the model's config.json: the one that the user names, or one where the trainers put it."""
    home = source if source.is_dir() else source.parent
    places = [given] if given is not None else [home / "huggingface", home]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    if given is not None:
        raise SleuthError(f"{given}: holds no {CONFIG}; --config names a Hugging Face folder of the same model")
    tried = " or ".join(map(str, places))
    raise SleuthError(f"no {CONFIG} in {tried}; name a Hugging Face folder of the same model with --config DIR")


def copy_companions(folder: Path, out: Path, dtype: torch.dtype) -> None:
    """Copy configuration and tokenizer. The copy of config.json states `dtype`: transformers loads weights in it."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype_name(dtype)
    (out / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for pattern in COMPANIONS:
        for path in folder.glob(pattern):
            if path.is_file():
                copy = out / path.relative_to(folder)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`."""
    return str(dtype).removeprefix("torch.")
