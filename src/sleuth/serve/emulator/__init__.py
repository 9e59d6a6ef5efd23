"""`sleuth serve --emulate`: our engine behind the endpoints of vLLM and SGLang, to test a pool without a GPU."""
