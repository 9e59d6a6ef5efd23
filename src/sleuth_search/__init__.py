"""The taskset `sleuth-search` of verifiers, which finds tasksets by the name of an installed module."""

from sleuth.trainers.verifiers import SearchTaskset

__all__ = ["SearchTaskset"]
