"""Rewards: scores of episodes. A reward reads records and never calls the network itself."""
