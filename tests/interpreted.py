"""Our kernels by Triton's interpreter on a CPU: the numbers of the code that a card runs.

Triton is in a folder of its own, where torch does not find it: it would import it in each process of the other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRITON = Path(__file__).parents[1] / ".venv-kernels"


def interpreted(code: str, *arguments: Any) -> Any:
    """What `code` prints, as JSON, in a process that interprets kernels (Triton asks at its import) and has the
    `arguments` as JSON in `sys.argv`."""
    if not (TRITON / "triton").is_dir():
        pytest.skip("needs Triton: `make test-kernels` installs it")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(TRITON)])}
    command = [sys.executable, "-W", "ignore", "-c", code, *map(json.dumps, arguments)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
