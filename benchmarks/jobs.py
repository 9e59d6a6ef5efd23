"""The jobs of a new process: `python -m benchmarks.jobs NAME ARGUMENTS`, JSON in, one line of JSON out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.episodes import Library, brief_episodes, draw_episodes
from benchmarks.flops import matmul_flops
from benchmarks.materials import make_materials, model_folder
from benchmarks.memory import forget_peak, give_back_freed, peak_bytes, resident_bytes
from benchmarks.samplers import SAMPLERS
from benchmarks.shapes import SHAPES, Shape, draw_rows
from benchmarks.sides import Side, Terms, open_side, relative_error
from benchmarks.steps import open_stepper
from benchmarks.two_turn import PLAYERS
from benchmarks.workloads import WORKLOADS, miniature, tokens_of


def time_update(folder: str, side: str, shape: str, **terms: Any) -> dict[str, Any]:
    """The seconds of one whole update after a miniature one, which loads the code, and the statistics of ours."""
    what = SHAPES[shape]
    opened = _open(folder, side, what, **terms)
    seconds = opened.play([draw_rows(what.miniature()), draw_rows(what)])[-1]
    return {"seconds": seconds} | _tokens(opened)


def compare_gradients(folder: str, shape: str, ours: Mapping[str, Any], peer: Mapping[str, Any]) -> dict[str, Any]:
    """The relative error of our gradient against the peer's, on the same rows."""
    what = SHAPES[shape]
    rows = draw_rows(what)
    return {"error": relative_error(*(_open(folder, shape=what, **terms).gradients(rows) for terms in (ours, peer)))}


def measure_memory(folder: str, side: str, shape: str, **terms: Any) -> dict[str, Any]:
    """Peak resident memory of one update above that of the libraries and the loaded model. A miniature update by
    another instance of the same side has loaded the code, as for timings."""
    what = SHAPES[shape]
    _open(folder, side, what, **terms).play([draw_rows(what.miniature())])
    opened = _open(folder, side, what, **terms)
    rows = draw_rows(what)
    give_back_freed()
    forget_peak()
    before = resident_bytes()
    seconds = opened.play([rows])[-1]
    return {"megabytes": (peak_bytes() - before) / 1e6, "loaded": before / 1e6, "seconds": seconds}


def time_sampling(folder: str, side: str, workload: str, **setting: Any) -> dict[str, Any]:
    """Sampled tokens a second, after a miniature workload; every request samples exactly its length."""
    sampler = SAMPLERS[side](Path(folder) / "small", **setting)
    requests = WORKLOADS[workload]()
    sampler.write(miniature())
    started = time.perf_counter()
    written = sampler.write(requests)
    seconds = time.perf_counter() - started
    assert [len(tokens) for tokens in written] == [request.length for request in requests]
    if hasattr(sampler, "close"):
        sampler.close()
    return {"tokens_per_second": tokens_of(requests) / seconds}


def time_episodes(folder: str, side: str, **setting: Any) -> dict[str, Any]:
    """Sampled tokens a second over two-turn search episodes, after brief ones."""
    player = PLAYERS[side](Path(folder), **setting)
    episodes = draw_episodes(Path(folder))
    player.write(brief_episodes(), Library(Path(folder), characters=20))
    library = Library(Path(folder))
    started = time.perf_counter()
    sampled = player.write(episodes, library)
    seconds = time.perf_counter() - started
    assert sampled == sum(episode.query + episode.answer for episode in episodes)
    return {"tokens_per_second": sampled / seconds}


def time_step(folder: str, side: str, **setting: Any) -> dict[str, Any]:
    """One whole search step after a brief one, on new episodes with other prompts."""
    brief = (brief_episodes(), Library(Path(folder), characters=20))
    whole = (draw_episodes(Path(folder)), Library(Path(folder)))
    return {"seconds": open_stepper(side, Path(folder), **setting).play([brief, whole])[-1]}


def write_materials(folder: str) -> dict[str, Any]:
    """Models, tokenizer and index in a folder."""
    make_materials(Path(folder))
    return {}


def measure_matmul() -> dict[str, Any]:
    """The rate of fp32 matrix products on this machine."""
    return {"flops": matmul_flops()}


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "update": time_update,
    "gradients": compare_gradients,
    "memory": measure_memory,
    "sample": time_sampling,
    "episodes": time_episodes,
    "step": time_step,
    "matmul": measure_matmul,
    "materials": write_materials,
}


def _open(folder: str, side: str, shape: Shape, **terms: Any) -> Side:
    model = model_folder(Path(folder), shape.vocabulary)
    return open_side(side, Terms(model=model, rows=shape.rows, siblings=shape.siblings, **terms))


def _tokens(side: Side) -> dict[str, Any]:
    update = getattr(side, "last", None)
    return {name: getattr(update, name) for name in ("tokens_computed", "tokens_dense") if update is not None}


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
