from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory import HostMemory, SizeClasses
from dynbatch.memory.size_classes import size_class
from tests.memory.allocators import stack


@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_size_class_wastes_at_most_its_share(size, per_doubling):
    rounded = size_class(size, per_doubling)
    assert size <= rounded
    assert rounded <= max(1024, size * (1 + 1 / per_doubling))
    assert size_class(rounded, per_doubling) == rounded


def test_there_are_so_many_classes_between_powers_of_two():
    assert sorted({size_class(size) for size in range(2049, 4097)}) == list(range(2304, 4097, 256))


def test_a_buffer_given_back_is_taken_again():
    above, below = stack(SizeClasses, HostMemory())
    first = above.allocate(4000)
    above.free(first)
    assert above.allocate(4040).address == first.address  # of the same class
    assert below.allocations == 1


def test_a_free_buffer_serves_requests_down_to_half_its_size():
    above, below = stack(SizeClasses, HostMemory())
    for size in (8000, 6000, 4100, 8000, 3000):
        above.free(above.allocate(size))
    assert below.allocations == 2  # the last is less than half of the first
    assert below.rounded_bytes == size_class(8000) + size_class(3000)


def test_of_free_buffers_the_smallest_is_taken():
    above, _ = stack(SizeClasses, HostMemory())
    buffers = [above.allocate(size) for size in (7000, 4200, 5000)]
    for buffer in buffers:
        above.free(buffer)
    assert above.allocate(4300).address == buffers[1].address
