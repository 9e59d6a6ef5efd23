"""Renders the chat templates that come in on stdin, one JSON object a line; `RenderProcess` starts it."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

MEMORY_BYTES = 4 << 30
"""Address space of the process, its libraries included."""
TOO_MUCH_MEMORY = f"it needs more than {MEMORY_BYTES >> 30} GB of memory"
CHARACTERS = 1_000_000
"""Longest text beyond that of the messages, which are a few hundred characters and placeholders."""
CPU_SECONDS = 2.0
"""How long one rendering may compute; published templates take milliseconds. Also ends a process that nobody awaits."""
LATE = int(getattr(signal, "SIGPROF", 0))


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
    if len(text) > CHARACTERS + sum(len(str(message)) for message in request["messages"]):
        return {"limit": f"it writes {len(text):,} characters for a few lines of conversation"}
    return {"text": text}


def main() -> None:
    """Answers until stdin ends; the first line says that the libraries are there."""
    import transformers.utils.chat_template_utils  # noqa: F401

    if LATE:  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        _end_after(CPU_SECONDS)
        answer = json.dumps(rendered(json.loads(line)))
        _end_after(0.0)
        print(answer, flush=True)


def _end_after(seconds: float) -> None:
    """Lets the system end this process, whatever it computes; 0 for not at all."""
    if LATE:
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
