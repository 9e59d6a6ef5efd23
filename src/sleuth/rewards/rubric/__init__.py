"""What an answer is worth by criteria that are written down."""
