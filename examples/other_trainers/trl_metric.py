"""The metric of "The second idea" in TRL: a reward that `reward_weights=[1.0, 0.0]` does not pay."""


def turns(completions: list[list[dict]], **columns: object) -> list[float]:
    return [float(sum(message["role"] == "assistant" for message in messages)) for messages in completions]
