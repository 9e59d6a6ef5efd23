"""`python -m sleuth`, which is how a launcher of many processes starts it."""

from __future__ import annotations

from sleuth.cli import main

main()
