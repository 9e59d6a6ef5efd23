"""`sleuth serve`: a checkpoint behind OpenAI's API and a web page."""
