"""Every barrier is needed: without it the checker reports a fault.

A barrier that can go unnoticed is either not needed, or not reached by the case of its file.
"""

import re

import numpy as np
import pytest

from dynbatch.kernels.cuda import move, softmax, source
from dynbatch.kernels.cuda.launch import Kernels
from dynbatch.kernels.cuda.softmax import Segments
from tests.cuda import fake_cupy, simulator
from tests.cuda.devices import simulated
from tests.cuda.simulator import KernelFault
from tests.kernels.cuda.test_common import REDUCE

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)

BARRIER = re.compile(r"__sync(?:threads|warp)\([^)]*\);")


def run_move(kernels):
    rows = fake_cupy.zeros((200, 3), np.float32)
    ids = np.repeat([0, 1, 2, 3, 4], [100, 1, 50, 40, 9])  # several long segments to a block
    for _ in range(250):  # more segments than blocks, so that a block has several
        ids = np.append(ids, ids[-1] + 1)
    table = tuple(fake_cupy.asarray(part) for part in move.row_table(ids))
    rows = fake_cupy.zeros((ids.size, 3), np.float32)
    out = fake_cupy.zeros((256, 3), np.float32)
    args = (rows, *table, out, table[2].size, 3, True)
    kernels.launch("add_rows", (-(-table[2].size // 8), 1), (32, 8), args)


def run_softmax(kernels):
    offsets = fake_cupy.asarray(np.array([0, 1100, 2300, 2301, 3400], np.int32))
    for width in (1, 2):
        x = fake_cupy.zeros((3400, width), np.float32)
        args = (x, x, offsets, 0, 4, width)
        kernels.launch("softmax", (1, 1), (32, 8), args)
        softmax.softmax(kernels, x, Segments(4, offsets), x, width)


def run_reduce(kernels):
    out = fake_cupy.zeros((2, 64), np.float32)
    kernels.launch("reduce", (1,), (64,), (fake_cupy.zeros(100, np.float32), out, 100))


CASES = {
    "move.cu": (source.read("move.cu"), run_move),
    "softmax.cu": (source.read("softmax.cu"), run_softmax),
    "reduce.cu": (REDUCE, run_reduce),  # for common.cuh
}


def mutants(name):
    """The source without one of its barriers; those of common.cuh are the case of reduce.cu."""
    text = CASES[name][0].text
    start = 0 if name == "reduce.cu" else text.index(f'#line 1 "{name}"')
    for barrier in BARRIER.finditer(text, start):
        mutant = text[: barrier.start()] + text[barrier.end() :]
        yield CASES[name][0]._replace(text=mutant)


@pytest.mark.parametrize("name", CASES)
def test_a_barrier_less_is_a_fault(name):
    whole, run = CASES[name]
    with simulated(checked=True):
        for text in (whole, *mutants(name)):
            kernels = Kernels(np.float32, fake_cupy)
            kernels.add(text)
            if text is whole:
                run(kernels)
                continue
            with pytest.raises(KernelFault, match=r"race|never wrote"):
                run(kernels)


def test_every_file_with_a_barrier_has_a_case():
    for name in source.names():
        _, _, body = source.read(name).text.partition(f'#line 1 "{name}"')
        assert name in CASES or not BARRIER.search(body)
    assert [len(list(mutants(name))) for name in CASES] == [2, 2, 2]
