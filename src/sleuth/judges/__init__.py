"""Who decides what supports what, and what is better: a failure never becomes a number."""
