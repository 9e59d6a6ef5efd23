"""Rewards of single searches, citations and thoughts."""
