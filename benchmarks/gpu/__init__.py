"""The self-check on one card: `make gpu`, or `python -m benchmarks.gpu --only CHECK`."""
