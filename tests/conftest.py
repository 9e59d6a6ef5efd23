"""By being here it lets every test import what several of them share, such as `chat_server`; and the benchmarks, which
lie beside the package, from the root of the checkout."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
