"""What an episode was worth. A reward reads records; it never calls the network itself."""
