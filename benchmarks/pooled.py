"""`python -m benchmarks.pooled`: a pool of one server beside the engine in this process, on the same cores.

Both complete the same requests with the same model, all requests at once, with log-probabilities. Rounds alternate; the
ratio is of tokens per second, pool over process, of each pair of neighbours. On a busy machine CPU time is more
informative: `core_ratio` is the CPU seconds of the engine in this process over those of the server, and
`all_cores_ratio` over those of server and client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.fresh import run_fresh
from benchmarks.materials import model_folder
from benchmarks.samplers import CONTEXT
from benchmarks.served import emulated
from benchmarks.shapes import SMALL
from benchmarks.workloads import WORKLOADS, Request, miniature
from sleuth.engines.local.engine import LocalEngine
from sleuth.engines.remote.pool import PoolEngine, PoolLimits
from sleuth.engines.remote.server import discover_server
from sleuth.learn.models import load_model
from sleuth.render import find_eos_ids
from sleuth.types import Sampling

IN_FLIGHT = 64


def main() -> None:
    """Print one JSON object for each server and workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled", description=__doc__)
    parser.add_argument("--emulate", choices=("vllm", "sglang"), action="append")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sleuth-bench-") as folder:
        run_fresh("materials", folder=folder)
        for emulate in options.emulate or ("vllm", "sglang"):
            for workload in WORKLOADS:
                print(json.dumps(compare(Path(folder), emulate, workload, options.rounds)), flush=True)


def compare(folder: Path, emulate: str, workload: str, rounds: int) -> dict[str, object]:
    """Tokens per second of both, and their ratio: the median of the rounds, with the smallest and the largest."""
    replica = model_folder(folder, SMALL)
    model, tokenizer = load_model(str(replica), dtype="float32", device="cpu")
    local = LocalEngine(model, tokenizer, slots=IN_FLIGHT, context=CONTEXT)
    with emulated(emulate, replica, "--slots", str(IN_FLIGHT), context=CONTEXT) as (url, process):
        eos_ids = find_eos_ids(model.generation_config, tokenizer)
        pool = PoolEngine(
            [discover_server(url, tokenizer=tokenizer, eos_ids=eos_ids)],
            model,
            tokenizer,
            eos_ids=eos_ids,
            context=CONTEXT,
            temperature=1.0,
            limits=PoolLimits(requests_at_once=IN_FLIGHT, seconds=600, unavailable_timeout=60, sleeps=False),
            shared=folder / f"weights-{emulate}-{workload}",
            log=lambda line: None,
        )
        pool.publish(1)
        engines = {"process": local, "pool": pool}
        speeds: dict[str, list[float]] = {name: [] for name in engines}
        costs: dict[str, list[float]] = {"process": [], "client": [], "server": []}
        for at in range(rounds + 1):
            for name, engine in engines.items():
                engine.publish(at + 2)  # what was read before is forgotten
                before = time.process_time(), cpu_seconds(process.pid)
                speed = tokens_a_second(engine, WORKLOADS[workload]() if at else miniature())
                ours, servers = time.process_time() - before[0], cpu_seconds(process.pid) - before[1]
                if at:  # the first loads all code
                    speeds[name].append(speed)
                    costs["client" if name == "pool" else "process"].append(ours)
                    costs["server"] += [servers] if name == "pool" else []
    ratios = [pool / process for pool, process in zip(speeds["pool"], speeds["process"], strict=True)]
    alone, client, server = (sum(cost) for cost in costs.values())
    return {
        "emulate": emulate,
        "workload": workload,
        **{f"{name}_tokens_a_second": round(median(found)) for name, found in speeds.items()},
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "largest": round(max(ratios), 3),
        "core_ratio": round(alone / server, 3),
        "all_cores_ratio": round(alone / (server + client), 3),
        "rounds": rounds,
    }


def cpu_seconds(process: int) -> float:
    """The CPU seconds of a process so far (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tokens_a_second(engine: LocalEngine | PoolEngine, requests: Sequence[Request]) -> float:
    """Tokens per second of all requests, sent at once."""

    async def write() -> int:
        limits = [Sampling(max_tokens=request.length, key=(0, 0, 0, *request.key, 0)) for request in requests]
        jobs = [engine.complete(request.prompt, limit) for request, limit in zip(requests, limits, strict=True)]
        return sum(len(completion.tokens) for completion in await asyncio.gather(*jobs))

    started = time.perf_counter()
    return asyncio.run(write()) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
