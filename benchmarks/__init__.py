"""Measures the claims about speed: `make bench`, or `python -m benchmarks --only PATTERN`."""
