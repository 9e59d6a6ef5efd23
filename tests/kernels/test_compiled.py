from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import torch

from sleuth.host.threads import PROCESS
from sleuth.kernels.compiled import compiled, compiled_in_parallel, greatest, power_of_two

pytestmark = pytest.mark.filterwarnings("ignore:Cannot cache compiled function")  # that of the number of threads below


@compiled_in_parallel
def count_threads(found):
    for at in numba.prange(len(found)):
        found[at] = numba.get_num_threads()


@pytest.mark.parametrize(("threads", "lent"), [(1, 0), (2, 0), (2, 1)])
def test_a_loop_is_shared_by_the_threads_of_torch_that_have_a_core_or_not_at_all(threads, lent, monkeypatch):
    monkeypatch.setattr(PROCESS.watch, "lent", lent)
    before, shared, alone = torch.get_num_threads(), np.zeros(10), np.zeros(10)
    torch.set_num_threads(threads)
    try:
        count_threads(alone, shared=False)
        count_threads(shared)
    finally:
        torch.set_num_threads(before)
    assert shared.tolist() == [min(threads - lent, len(os.sched_getaffinity(0)))] * 10
    assert alone.tolist() == [1] * 10


def test_callers_in_several_threads_wait_for_each_other():
    arrays = [np.zeros(1000) for _ in range(40)]
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(count_threads, arrays))
    assert all(array.all() for array in arrays)


def test_without_a_writable_cache_functions_are_still_compiled():
    made = {}
    exec("def twice(number):\n    return 2 * number", made)  # of no file, so there is no folder either
    assert compiled(made["twice"])(4) == 8


def test_powers_of_two_are_right_to_the_rounding_of_fp32():
    exponents = np.linspace(-126, 0, 5001, dtype=np.float32)
    powers = np.array([power_of_two(exponent) for exponent in exponents])
    np.testing.assert_allclose(powers, np.exp2(exponents.astype(np.float64)), rtol=3e-7)
    assert power_of_two(np.float32(-1e30)) == power_of_two(np.float32(-np.inf)) == np.float32(2.0**-126)
    assert np.isnan(power_of_two(np.float32("nan")))


@pytest.mark.parametrize("count", [1, 15, 64, 1000])
def test_greatest_returns_the_maximum_at_any_position(count):
    for at in range(count):
        numbers = -np.ones(count, dtype=np.float32)
        numbers[at] = 2
        assert greatest(numbers) == 2


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_torch_keeps_its_number_of_threads_when_numba_starts_its_own(threads):
    code = (
        "import torch; from sleuth.kernels.layers import swish_product; before = torch.get_num_threads();"
        "swish_product(torch.ones(2**16), torch.ones(2**16)); print(before, torch.get_num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [threads, threads]


def test_the_process_that_compiles_and_those_that_load_compute_the_same_bytes(tmp_path):
    code = (
        "import numpy as np; from sleuth.engines.sampling import draw_tokens;"
        "logits = 3 * np.random.default_rng(0).normal(size=(8, 877)).astype(np.float32);"
        "print(draw_tokens(logits, np.ones(8), np.linspace(0.1, 0.9, 8))[1].tobytes().hex())"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert runs[0] == runs[1]


def test_numba_leaves_the_terminal_alone():
    """With colorama it would print a sequence on stdout at the end, which a terminal of ours shows as an escape."""
    program = "import sleuth.kernels.compiled; from numba.core import errors; raise SystemExit(hasattr(errors, 'init'))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
