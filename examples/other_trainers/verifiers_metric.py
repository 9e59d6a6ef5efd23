"""The metric of "The second idea" in verifiers, as `--env.taskset.task.metrics.turns.fn` names it."""

import verifiers.v1 as vf


async def turns(trace: vf.Trace) -> float:
    return float(trace.num_turns)
