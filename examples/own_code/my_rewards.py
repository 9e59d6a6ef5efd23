"""A reward of your own: short episodes are worth more. `brevity.toml` adds a little of it to that for answers."""

from sleuth.types import Episode


def brevity(episode: Episode, *, limit: int = 60) -> float:
    """1 for an episode in which the policy wrote nothing, 0 from `limit` tokens on."""
    segments = [segment for segment in episode.whole.segments if segment.author == "policy"]
    return max(0.0, 1 - sum(len(segment.tokens) for segment in segments) / limit)
