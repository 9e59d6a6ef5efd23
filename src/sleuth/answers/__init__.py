"""Answers compared with golden ones: exact match, scorers of published systems, test suites and failure modes."""
