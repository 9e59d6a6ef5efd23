"""A generated, searchable world with known facts: people, places, works and firms. Data only."""
