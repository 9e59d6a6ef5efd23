"""What a search, a citation or a thought earns by itself."""
