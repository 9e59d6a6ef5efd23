"""HTTP servers: `chat_app` (a page and OpenAI's API), `retriever_app` and `watch`. They bind to this machine alone by
default."""
