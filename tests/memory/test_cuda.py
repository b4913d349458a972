"""The allocators over the memory of a GPU, and over allocators of others."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.memory import DeviceMemory, GivenMemory, Pool
from tests.memory.allocators import ALLOCATORS
from tests.reference_models import Tagger, sentences

SIZES = [1, 1000, 17, 50_000, 300, 1000, 9]


def of_pointers(cuda):
    """Memory as from CuPy's pools, and RMM's allocator for CuPy."""
    return GivenMemory(cuda.cuda.alloc), lambda: None


def of_addresses(cuda):
    """Memory as from `rmm.mr`: an address, and a function that takes it back."""
    held = {}

    def allocate(size):
        memory = cuda.cuda.Memory(size)
        held[memory.ptr] = memory
        return memory.ptr

    def deallocate(address, size):
        assert held.pop(address).size == size

    def check():
        assert not held

    return GivenMemory(allocate, deallocate), check


def of_the_driver(cuda):
    return DeviceMemory(), lambda: None


SOURCES = [of_the_driver, of_pointers, of_addresses]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ALLOCATORS)
def test_arrays_of_a_gpu_are_apart_and_given_back(cuda, name, source):
    upstream, check = source(cuda)
    pool = Pool(upstream=upstream, allocator=ALLOCATORS[name])
    arrays = [pool.take(size, np.float32) for size in SIZES]
    for number, array in enumerate(arrays):
        assert array.size >= SIZES[number] and array.data.ptr % 64 == 0
        array.fill(number)
    for number in (3, 0, 5):
        assert (cuda.asnumpy(arrays[number]) == number).all()
        pool.give(arrays[number])
        arrays[number] = pool.take(SIZES[number] // 2, np.float32)
        arrays[number].fill(number)
    for number, array in enumerate(arrays):
        assert (cuda.asnumpy(array) == number).all()
        pool.give(array)
    del array, arrays
    pool.release()
    assert (pool.used_bytes, pool.reserved_bytes) == (0, 0)
    check()


@pytest.mark.parametrize("source", SOURCES)
def test_a_step_on_memory_of_others(cuda, source):
    upstream, check = source(cuda)
    pool = Pool(upstream=upstream)
    found = []
    for _ in range(3):
        model = Tagger()
        for parameter in model.parameters():
            parameter.to("cuda")
        with db.Graph("cuda", pool=pool) as graph:
            loss = F.mean(model.losses(graph, sentences([3, 1, 7])))
            graph.backward(loss)
        found.append(float(loss.value))
    assert len(set(found)) == 1 and pool.upstream_allocations == 1
    pool.release()
    check()
