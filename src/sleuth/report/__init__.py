"""Reports: a run folder as one HTML page that opens offline. Reads files only, and never imports torch."""

from __future__ import annotations

from sleuth.report.page import write_report

__all__ = ["write_report"]
