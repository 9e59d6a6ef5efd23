"""What docs/how-to/from_python.md promises to keep has the signatures that stable_names.txt remembers.

After a change that CHANGELOG.md announces: `python tests/test_stable_names.py > tests/stable_names.txt`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TYPES = "sleuth.types"
"""All that it defines."""
NAMES = {
    "sleuth.learn.losses": [
        "clipped_policy_loss",
        "cispo_policy_loss",
        "supervised_loss",
        "teacher_loss",
        "kl_penalty",
        "truncated_importance_weights",
        "token_weights",
        "group_advantages",
        "PolicyLoss",
    ],
    "sleuth.recipe": ["load_recipe"],
    "sleuth.cli.pipeline": ["require_inputs", "run_recipe"],
    "sleuth.runs.run_folder": ["RunFolder.open"],
    "sleuth.rollout": ["play", "Rollout", "Rollout.groups"],
    "sleuth.engines.local.engine": [
        "LocalEngine",
        "LocalEngine.complete",
        "LocalEngine.stream",
        "LocalEngine.publish",
    ],
    "sleuth.learn.models": ["load_model"],
    "sleuth.render": ["Renderer", "encode"],
    "sleuth.learn.batch": ["Row", "collate", "batch_of_groups"],
    "sleuth.learn.prefix_tree": ["pack"],
    "sleuth.learn.logprobs": ["token_logprobs", "row_logprobs"],
    "sleuth.learn.policy": ["Policy", "Policy.update", "Policy.supervise"],
    "sleuth.learn.optim": ["Optimisation"],
    "sleuth.runs.rollouts": ["read_rollouts"],
}
REMEMBERED = Path(__file__).with_name("stable_names.txt")
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "from_python.md"
DEFAULT_OBJECT = re.compile(r"<function .*? at 0x\w+>")


def signatures() -> Iterator[str]:
    """A line for each name, `sleuth.runs.rollouts.read_rollouts(path: 'Path') -> 'list[Group]'`."""
    for module, names in {TYPES: defined(TYPES), **NAMES}.items():
        for name in names:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            is_error = inspect.isclass(found) and issubclass(found, Exception)
            yield f"{module}.{name}{'' if is_error else shown(found)}"


def shown(found: Any) -> str:
    """The signature, with dots for a default that is an object of its own in each process."""
    return DEFAULT_OBJECT.sub("...", str(inspect.signature(found)))


def defined(module: str) -> list[str]:
    """The public functions, classes and their methods of a module."""
    found = vars(importlib.import_module(module))
    own = {
        name: one
        for name, one in found.items()
        if not name.startswith("_") and (inspect.isclass(one) or inspect.isfunction(one)) and one.__module__ == module
    }
    methods = [
        f"{name}.{method}"
        for name, one in own.items()
        if inspect.isclass(one)
        for method, value in vars(one).items()
        if not method.startswith("_") and inspect.isfunction(value)
    ]
    return [*own, *methods]


def test_the_signatures_of_what_stays_are_those_that_are_remembered() -> None:
    assert [*signatures()] == REMEMBERED.read_text().splitlines(), "announce it in CHANGELOG.md; see above"


def test_the_page_names_what_is_remembered() -> None:
    promised = PAGE.read_text().partition("## What stays as it is")[2]
    missing = [name for names in NAMES.values() for name in names if f"{name.rpartition('.')[2]}`" not in promised]
    assert not missing
    assert all(module in promised for module in (TYPES, *NAMES))


if __name__ == "__main__":
    print(*signatures(), sep="\n")
