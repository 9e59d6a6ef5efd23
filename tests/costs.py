"""What tests cost, as `--record-costs` measured it: which are quick enough for `make test-fast`, and which too long for
`make test`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("costs.json")
"""Seconds by function, of the costliest parameters, and of fixtures that tests share; what is quick is left out."""
QUICK, QUICK_FIXTURE, LONG = 0.06, 1.0, 2.0
RUNS = {"finished", "whole", "half"}
"""Fixtures that make a run when a test calls them, unless another test was first: no test of theirs is quick."""


def function_of(nodeid: str) -> str:
    """`tests/test_a.py::test_b` of any of its parameters."""
    return nodeid.partition("[")[0]


class Costs:
    """The recorded costs."""

    def __init__(self) -> None:
        recorded = json.loads(FILE.read_text())
        self.tests: dict[str, float] = recorded["tests"]
        self.fixtures: dict[str, float] = recorded["fixtures"]

    def is_quick(self, nodeid: str, fixtures: Iterable[str]) -> bool:
        """Whether a test is quick, and every fixture that it shares with others. A test with no record is quick."""
        asked = set(fixtures)
        shared = (name.rpartition("::") for name in self.fixtures)
        costly = any(nodeid.startswith(place) and name in asked for place, _, name in shared)
        return not costly and not asked & RUNS and function_of(nodeid) not in self.tests

    def is_long(self, nodeid: str) -> bool:
        """Whether a test, with any of its parameters, takes seconds; what fixtures take does not count."""
        return self.tests.get(function_of(nodeid), 0.0) >= LONG


class CostRecorder:
    """A plugin that measures wall time, so on a quiet machine, and replaces the records of the files that were run."""

    def __init__(self) -> None:
        self.shared: dict[str, float] = {}
        self.tests: defaultdict[str, float] = defaultdict(float)
        self.fixtures: dict[str, float] = {}

    def add_fixture(self, name: str, seconds: float) -> None:
        """Notes a fixture that the test now running is the first to ask for."""
        self.shared[name] = seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):
        if call.when == "setup":
            item.user_properties.append(("shared", self.shared))
            self.shared = {}
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Runs where the reports of all workers arrive."""
        self.tests[report.nodeid] += report.duration
        if report.when == "setup":
            shared: dict[str, float] = dict(report.user_properties)["shared"]  # pyright: ignore
            self.tests[report.nodeid] -= sum(shared.values())
            self.fixtures |= shared

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        costliest: defaultdict[str, float] = defaultdict(float)
        for nodeid, seconds in self.tests.items():
            costliest[function_of(nodeid)] = max(costliest[function_of(nodeid)], seconds)
        run, old = {name.partition("::")[0] for name in costliest}, Costs()
        tests = {name: seconds for name, seconds in old.tests.items() if name.partition("::")[0] not in run}
        fixtures = {name: s for name, s in old.fixtures.items() if name.partition("::")[0] not in run}
        write(tests | costliest, fixtures | self.fixtures)


def write(tests: dict[str, float], fixtures: dict[str, float]) -> None:
    """Leaves out what is quick."""
    found = {
        "tests": {name: round(tests[name], 1) for name in sorted(tests) if tests[name] >= QUICK},
        "fixtures": {name: round(fixtures[name], 1) for name in sorted(fixtures) if fixtures[name] >= QUICK_FIXTURE},
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")
