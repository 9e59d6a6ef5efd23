"""A generated, searchable world with known facts about people, towns, works and firms."""
