"""The reward of `examples/own_code/my_rewards.py` in TRL. Without a list of who wrote what, it counts results too."""


def brevity(completion_ids: list[list[int]], **columns: object) -> list[float]:
    return [max(0.0, 1 - len(tokens) / 60) for tokens in completion_ids]
