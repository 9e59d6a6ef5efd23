"""Workflows, citation, changelog, image and notebook agree with the rest of the repository."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import yaml

import sleuth

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_workflows_use_only_existing_make_targets() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {name for file in WORKFLOWS for run in commands(file) for name in re.findall(r"\bmake ([\w-]+)", run)}
    assert made <= targets
    assert {"lint", "test", "demo", "docs"} <= made


def test_citation_and_changelog_name_this_version() -> None:
    read = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert read["version"] == sleuth.__version__
    assert read["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= read.keys()
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", sleuth.__version__]


def test_the_image_copies_only_existing_files_that_are_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    dockerfile = (ROOT / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert source in kept
    forced = re.findall(r'^"(.+)" = "sleuth/shipped', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert all(any(fnmatch.fnmatch(file, f"{kept_one}*") for kept_one in kept) for file in forced)
    assert dockerfile.index("USER sleuth") < dockerfile.index("ENTRYPOINT")
    [extras] = re.findall(r'"\.\[(.+)\]"', dockerfile)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.split(",")) <= set(known)


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = json.loads((ROOT / "examples/demo.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
