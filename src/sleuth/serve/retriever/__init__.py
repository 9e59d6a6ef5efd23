"""`sleuth retriever`: an index behind the HTTP APIs that trainers use."""
