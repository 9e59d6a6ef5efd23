"""Estimates of what a run takes in steps, tokens, time, memory and disk."""
