"""Triton's interpreter on a CPU, in a process of its own, since Triton asks for it when it is imported. Triton is in a
folder of its own, where torch does not find it: it would import it in each process of the other tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRITON = Path(__file__).parents[2] / ".venv-kernels"


def interpreted(code: str, argument: Any) -> Any:
    """What `code` prints, as JSON, given an argument as JSON."""
    if not (TRITON / "triton").is_dir():
        pytest.skip("needs Triton: `make test-kernels` installs it")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(TRITON)])}
    ran = subprocess.run(
        [sys.executable, "-c", code, json.dumps(argument)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
