"""Sleuth as its users have it: a wheel in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """The wheel, built into the folder."""
    pytest.importorskip("hatchling", reason="`make test` installs what builds a wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """The commands (`bin`) of a new environment in the folder, with the wheel; torch and the like are those of the
    tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    command = [sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True, capture_output=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # ours comes before it
    return folder / "bin"
