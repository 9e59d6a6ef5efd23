"""Figures of finished episodes, each with its interval."""
