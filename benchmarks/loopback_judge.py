"""A server process that acts as a judge, knows the true verdicts, and fails at given rates.

It computes `--slots` answers at once, each in `--seconds`; other requests wait, as in any engine. Some answers are an
error, garbage or an invalid score, at the end of their time; some are never sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

MODEL = "loopback"
CLAIM = re.compile(r"claim number (\d+)")


def truth(number: int) -> int:
    """The score, from 0 to 2, of `claim number N`."""
    return number * 7 % 3


class LoopbackJudge:
    """Chat completions at `/v1/chat/completions`, their outcomes at `/counts`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.dice = random.Random(options.seed)
        self.slots = asyncio.Semaphore(options.slots)
        self.counts: Counter[str] = Counter()
        shares = {"error": options.errors, "hang": options.hangs, "garbage": options.garbage, "range": options.range}
        self.fates, self.weights = [*shares, "answer"], [*shares.values(), 1 - sum(shares.values())]

    async def complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        [fate] = self.dice.choices(self.fates, self.weights)
        self.counts[fate] += 1
        if fate == "hang":
            await asyncio.sleep(3600)
        async with self.slots:
            await asyncio.sleep(self.options.seconds)
        if fate == "error":
            return JSONResponse({"detail": "out of luck"}, status_code=500)
        return JSONResponse(self.completion(fate, body))

    def completion(self, fate: str, body: dict[str, Any]) -> dict[str, Any]:
        claim = CLAIM.search(body["messages"][1]["content"])
        assert claim is not None
        score = 7 if fate == "range" else truth(int(claim[1]))
        content = json.dumps({"reason": "it is known", "quote": "", "score": score})
        message = {"content": "Score: two, I would say" if fate == "garbage" else content}
        return {"model": MODEL, "choices": [{"message": message, "finish_reason": "stop"}]}

    async def models(self, request: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": MODEL}]})

    async def count(self, request: Request) -> JSONResponse:
        return JSONResponse(self.counts)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loopback_judge", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    for fault in ("errors", "hangs", "garbage", "range"):
        parser.add_argument(f"--{fault}", type=float, default=0.0, metavar="SHARE")
    judge = LoopbackJudge(parser.parse_args())
    routes = [
        Route("/v1/chat/completions", judge.complete, methods=["POST"]),
        Route("/v1/models", judge.models),
        Route("/counts", judge.count),
    ]
    uvicorn.run(Starlette(routes=routes), port=judge.options.port, log_level="critical", access_log=False)


if __name__ == "__main__":
    main()
