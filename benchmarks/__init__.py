"""What Sleuth claims about speed, for anyone to run: `make judge_pool`, or `python -m benchmarks --only PATTERN`."""
