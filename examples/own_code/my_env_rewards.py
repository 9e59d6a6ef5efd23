"""The reward of the guessing game."""

from sleuth.types import Episode


def found_early(episode: Episode) -> float:
    """1 for the first guess, a half for the second, and so on; 0 if the number was not found."""
    trajectory = episode.trajectory
    return 1 / len(trajectory.actions) if trajectory.stop == "answered" else 0.0
