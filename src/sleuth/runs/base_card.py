"""What a checkpoint inherits from the model it was trained from: licence and citations, as that model's card has
them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCED = re.compile(r"^```bibtex\n.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """`licence` is a Hugging Face licence name, None where the base says none; `citations` are BibTeX blocks."""

    licence: str | None = None
    citations: tuple[str, ...] = ()


def inherited_from(model: str) -> Inherited:
    """Read off the card of a folder or of a hub id that was downloaded before; nothing is downloaded."""
    card = _card_of(model)
    if card is None:
        return Inherited()
    from huggingface_hub import ModelCard

    text = card.read_text(encoding="utf-8", errors="replace")
    try:
        data = ModelCard(text, ignore_metadata_errors=True).data
    except ValueError:  # its front matter is no YAML mapping
        return Inherited(citations=tuple(_FENCED.findall(text)))
    name = getattr(data, "license", None)
    licence = getattr(data, "license_name", None) if name == "other" else name
    return Inherited(licence=licence, citations=tuple(_FENCED.findall(text)))


def _card_of(model: str) -> Path | None:
    if Path(model).is_dir():
        path = Path(model) / "README.md"
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "README.md")
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(found) if isinstance(found, str) else None
