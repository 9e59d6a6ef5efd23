"""A run folder becomes one HTML page that opens offline. Reads files only: never live objects, never torch."""

from __future__ import annotations

from sleuth.report.page import write_report

__all__ = ["write_report"]
