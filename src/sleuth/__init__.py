"""Sleuth trains small language models to search, think and cite."""

__version__ = "0.1.0"
