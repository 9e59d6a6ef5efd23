"""Loaders of questions, documents and problems from files on disk or on the hub."""
