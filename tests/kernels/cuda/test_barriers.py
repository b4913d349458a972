"""Every barrier is needed: without it the checker reports a fault.

A barrier that can go unnoticed is either not needed, or not reached by `exercise` in the test of
its file.
"""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import Kernels
from tests.cuda import fake_cupy, simulator
from tests.cuda.devices import simulated
from tests.cuda.simulator import KernelFault
from tests.marks import quick

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)

BARRIER = re.compile(r"__sync(?:threads|warp)\([^)]*\);")
COMMON = "common.cuh"  # barriers of the headers are exercised through kernels of test_common.py


def own_text(name):
    """The beginning of a file's own text in its source, and the source."""
    if name == COMMON:
        text = importlib.import_module("tests.kernels.cuda.test_common").REDUCE
        return 0, text
    whole = source.read(name)
    return whole.text.index(f'#line 1 "{name}"'), whole


def mutants(name):
    """The source without one of its barriers."""
    start, whole = own_text(name)
    for barrier in BARRIER.finditer(whole.text, start):
        text = whole.text[: barrier.start()] + whole.text[barrier.end() :]
        yield whole._replace(text=text)


def home_of(name):
    """The test of a file, which lies in the folder of the same name and covers gradients too."""
    here = Path(__file__).parent
    (path,) = here.rglob(f"test_{Path(name).stem.removesuffix('_backward')}.py")
    return importlib.import_module(
        ".".join(("tests.kernels.cuda", *path.relative_to(here).with_suffix("").parts))
    )


def files_with_barriers():
    return [name for name in (COMMON, *source.names()) if list(mutants(name))]


@pytest.mark.parametrize("name", quick(["arrays.cu"], files_with_barriers()))
def test_a_barrier_less_is_a_fault(name):
    exercise = home_of(name).exercise
    with simulated(checked=True):
        whole = own_text(name)[1]
        for text in (whole, *mutants(name)):
            kernels = Kernels(np.float32, fake_cupy)
            kernels.add(text)
            if text is whole:
                exercise(kernels)
                continue
            with pytest.raises(KernelFault, match=r"race|never wrote"):
                exercise(kernels)


def test_the_barriers_are_found():
    assert [len(list(mutants(name))) for name in (COMMON, "move.cu")] == [7, 2]
