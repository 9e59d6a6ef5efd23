"""Who writes the next tokens: `local` in this process, `scripted` for tests."""
