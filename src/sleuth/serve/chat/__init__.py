"""A checkpoint that answers people: OpenAI's API and a page."""
