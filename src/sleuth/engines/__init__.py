"""Who writes the next tokens: `local` in this process, `http` on a server, `scripted` for tests."""
