"""Answers of problems that ask for reasoning: found in what was written, and compared."""
