"""Values in bfloat16, in C: each bit is the rule's, whichever vector or thread it falls to."""

import pytest

from dynbatch.kernels.c.runtime.library import reason
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import c_version
from dynbatch.kernels.runtime.tasks import written
from tests.kernels.test_narrow import check_every_number, checked, every_upper_half, random_bits

pytestmark = pytest.mark.skipif(bool(reason()), reason="C kernels do not run here")


def in_c(kernel, *arrays):
    assert c_version(kernel)(*arrays) is not NotImplemented


def test_every_number_goes_to_the_nearest():
    check_every_number(in_c)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 1001])
def test_sizes(size):
    checked(in_c, random_bits(size))


def test_threads_share_calls_that_are_done_now_or_written_down(monkeypatch):
    x = every_upper_half()[: 1 << 17]
    shards = [(0, 5), (5, 1001), (1001, x.size)]
    monkeypatch.setattr(parallel, "shards", lambda count, least=1: shards)
    checked(in_c, x)

    def later(kernel, *arrays):
        tasks = written(lambda: kernel(*arrays))
        assert len(tasks.parts()) == 3
        tasks.repeated()()

    checked(later, x)
