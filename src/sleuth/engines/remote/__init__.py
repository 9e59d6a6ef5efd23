"""Engines on servers (vLLM, SGLang, llama.cpp, Ollama): requests, discovery, capabilities, weight sync."""
