"""What episodes are made of: settings, prompts, chat templates, calls of tools, and the protocol that travels."""
