"""Shared parts of the servers: limits, admission, event streams, errors, metrics."""
