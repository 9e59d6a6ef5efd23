"""What a continuation of a text is worth beside others of the same prefix."""
