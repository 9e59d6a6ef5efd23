"""Hooks beside the steps of a stage: how far its weights have moved, and the longest segment of a step."""


class Drift:
    def __init__(self, stage):
        self.stage = stage
        self.first = [weight.detach().clone() for weight in stage.model.parameters()]

    def measure(self, step, groups):
        now = zip(self.stage.model.parameters(), self.first, strict=True)
        return {"largest": max(float((weight.detach() - first).abs().max()) for weight, first in now)}

    def state(self):
        return {"first": self.first}

    def load_state(self, state):
        self.first = state["first"]


def longest(step, groups):
    lengths = [
        len(segment.tokens) for group in groups for episode in group.episodes for segment in episode.whole.segments
    ]
    return {"segment": max(lengths)}
