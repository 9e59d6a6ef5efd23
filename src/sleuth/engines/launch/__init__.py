"""Starts vLLM and SGLang as processes of a run, watches them, and ends them with it."""
