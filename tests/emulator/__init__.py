"""Our engine behind the endpoints that training needs of vLLM and SGLang, to test pools without either, nor a card.

`emulator.served` serves it in a thread of a test. As a process: `python tests/emulator vllm MODEL --port 30001`.
"""
