"""Inference engines: `local` in this process, `remote` on servers, `scripted` for tests."""
