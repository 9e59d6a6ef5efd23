"""What a thought is worth, and what can be seen of one without knowing."""
