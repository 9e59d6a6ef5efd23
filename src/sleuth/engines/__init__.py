"""Who writes the next tokens: `local` in this process, `remote` on servers, `scripted` for tests."""
