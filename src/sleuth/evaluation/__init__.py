"""Models measured as they stand: sessions, suites, win rate, reasoning and probes. Nothing here trains."""
