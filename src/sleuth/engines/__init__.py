"""Inference engines: `local` in this process, `remote` on servers, and how a run launches these."""
