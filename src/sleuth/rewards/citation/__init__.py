"""Whether every claim of an answer has a source, and what that is worth."""
