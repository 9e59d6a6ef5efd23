"""Engines on servers (vLLM, SGLang): requests, discovery, capabilities, weight sync and its check."""
