"""The card beside a GGUF file: how to run it, and what its client must do."""

from __future__ import annotations

from pathlib import Path

from sleuth import __version__
from sleuth.episodes.protocol import ProtocolCard
from sleuth.runs.checkpoints import CARD
from sleuth.runs.model_card import client_part, protocol_section

LOOP = "The search loop is not part of it: it writes turns, and whoever calls it runs the searches."
RIGHTS = "## Licence and citations"


def gguf_card(file: Path, *, source: Path, dtype: str, protocol: ProtocolCard | None, context: int) -> str:
    """The text of the card of `file`, which was written from the checkpoint `source`; a text is `context` tokens at
    most. Licence and citations are those of the checkpoint's own card."""
    lines = [
        *(f"# {file.stem}", ""),
        f"`{file.name}`: the model of `{source}` as a GGUF file, with weights in {dtype}, written with Sleuth "
        f"{__version__}.",
        *("", LOOP, "", "## How to run it", "", "llama.cpp:", ""),
        *("```", f"llama-server -m {file.name} -c {context}", "```", ""),
        *("Ollama, with a `Modelfile` and `ollama create NAME -f Modelfile`:", ""),
        *("```", *modelfile(file, protocol, context), "```", ""),
        *_client(protocol),
    ]
    if protocol is not None:
        lines += ["", "## Protocol", "", *protocol_section(protocol)]
    return "\n".join([*lines, "", RIGHTS, "", *_rights(source), ""])


def modelfile(file: Path, protocol: ProtocolCard | None, context: int) -> list[str]:
    """A Modelfile of Ollama: the protocol's stops, and its prompt as it is sent where the protocol has no chat
    template."""
    raw = protocol is not None and protocol.prompt_role == "raw"
    stops = protocol.dialect.stops if protocol is not None and protocol.env is None else ()
    quoted = (stop.replace("\\", "\\\\").replace('"', '\\"') for stop in stops)
    return [
        f"FROM ./{file.name}",
        *(["TEMPLATE {{ .Prompt }}"] if raw else []),
        f"PARAMETER num_ctx {context}",
        *(f'PARAMETER stop "{stop}"' for stop in quoted),
    ]


def _client(protocol: ProtocolCard | None) -> list[str]:
    if protocol is None:
        return ["The checkpoint has no `protocol.json`: how it was asked in training is not known here."]
    if protocol.env is not None:
        functions = " and ".join(f"`{name}`" for name in protocol.env.functions)
        return [f"It acts with {functions}, code that is no part of this file."]
    return [
        client_part(protocol),
        "",
        "Both servers leave the stop itself out of their reply: append it before what follows. A text that is sent "
        "again may be split into other tokens than those that were sampled: `/completion` of llama.cpp takes token "
        "ids, and returns them with `return_tokens`.",
    ]


def _rights(source: Path) -> list[str]:
    card = source / CARD
    _, found, rights = card.read_text(encoding="utf-8").partition(RIGHTS) if card.is_file() else ("", "", "")
    return [rights.strip()] if found else ["Not stated: the checkpoint has no card of Sleuth with a licence."]
