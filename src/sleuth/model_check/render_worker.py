"""Renders the chat templates that come in on stdin, one JSON object a line; `BoundedTemplate` starts it."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

MEMORY_BYTES = 4 << 30
"""Address space of the process, its libraries included."""
TOO_MUCH_MEMORY = f"it needs more than {MEMORY_BYTES >> 30} GB of memory"
CHARACTERS = 1_000_000
"""Longest text. The conversations that are rendered have a few hundred characters."""


def rendered(request: dict[str, Any]) -> dict[str, str]:
    """`{"text": ...}`; `{"error": ...}` if the template raises, `{"limit": ...}` if it writes or needs too much."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text], _ = render_jinja_template(
            [request["messages"]],
            tools=request["tools"],
            chat_template=request["source"],
            add_generation_prompt=request["prompt"],
            **request["variables"],
        )
    except MemoryError:
        return {"limit": TOO_MUCH_MEMORY}
    except Exception as error:  # templates raise whatever Python does
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}
    if len(text) > CHARACTERS:
        return {"limit": f"it writes {len(text):,} characters for a few lines of conversation"}
    return {"text": text}


def main() -> None:
    """Answers until stdin ends; the first line says that the libraries are there."""
    import transformers.utils.chat_template_utils  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(rendered(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
