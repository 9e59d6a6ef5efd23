"""The reward of `examples/own_code/my_rewards.py` in verifiers, as `--env.taskset.task.rewards.brevity.fn` names it."""

import verifiers.v1 as vf


async def brevity(trace: vf.Trace) -> float:
    return max(0.0, 1 - trace.num_output_tokens / 60)
