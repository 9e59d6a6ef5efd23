"""What Sleuth claims about speed, for anyone to run: `make bench`, or `python -m benchmarks --only PATTERN`."""
