"""Servers that write: requests, discovery, capabilities, weight sync and its check."""
