"""What the servers share: limits, admission, event streams, refusals."""
