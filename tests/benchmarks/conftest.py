"""The benchmarks lie beside the package, not in it: the tests find them from the root of the checkout."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
