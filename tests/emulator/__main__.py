"""`python tests/emulator vllm MODEL [--port N] [--context N] [--slots N] [--faults JSON]`: an emulated server as a
process. It prints its address, and takes weights from folders."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # this folder is a package of it


def main() -> None:
    """Serves until the process is stopped."""
    from emulator.app import EMULATORS, emulator_app
    from emulator.engine import EmulatedEngine
    from emulator.faults import Faults
    from sleuth.cli.http_server import LOOPBACK, address_of, listen, run, server_of
    from sleuth.learn.models import context_of, load_model

    parser = argparse.ArgumentParser(prog="python tests/emulator", description=__doc__)
    parser.add_argument("kind", choices=EMULATORS)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--context", type=int)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--faults", type=json.loads, default={}, help='such as {"latency": 0.2}')
    options = parser.parse_args()
    listening = listen(LOOPBACK, options.port)
    model, tokenizer = load_model(options.model, dtype=None, device="auto")
    context = options.context or context_of(model)
    engine = EmulatedEngine(model.eval(), tokenizer, slots=options.slots, context=context)
    app = emulator_app(options.kind, str(Path(options.model).resolve()), engine, faults=Faults(**options.faults))
    print(f"{options.model}: emulates {options.kind} at {address_of(LOOPBACK, listening)}", flush=True)
    run(server_of(app), listening)


if __name__ == "__main__":
    main()
