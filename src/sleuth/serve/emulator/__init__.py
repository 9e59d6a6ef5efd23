"""Our engine behind the endpoints of vLLM and of SGLang, to try on two cores what is meant for their cards."""
