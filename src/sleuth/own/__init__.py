"""Python that a user names in a recipe: found, imported, hashed, and called within a time limit."""
