"""Retrieval: the corpus on disk, the indexes over it, and retrievers over HTTP."""
