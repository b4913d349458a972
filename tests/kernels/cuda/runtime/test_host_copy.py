"""An array is copied to the host in its turn, and reading it waits for that copy alone."""

import weakref

import numpy as np
import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.optimizers import update
from dynbatch.kernels.cuda.runtime.host_copy import HostCopy
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import ParameterSlice, Rule
from dynbatch.optim.sgd import sgd

ONE = Rule(sgd, (1.0, 0, 1, 0, 0))


def count_down(x, ones):
    update([ParameterSlice(x, ones, (), ONE)])


def test_it_is_what_the_array_held_at_that_moment(cupy, dtype):
    x, ones = cupy.asarray(np.arange(5, dtype=dtype)), cupy.asarray(np.ones(5, dtype))
    count_down(x, ones)
    later = HostCopy(x)
    count_down(x, ones)
    queue().flush()
    count_down(x, ones)
    queue().flush()
    assert later.read().tolist() == [-1, 0, 1, 2, 3] and later.read().dtype == dtype
    assert x.get().tolist() == [-3, -2, -1, 0, 1]


def test_reading_hands_the_queue_over(cupy):
    x = cupy.asarray(np.ones((2, 3)))
    later = HostCopy(x)
    del x
    assert later.read().tolist() == [[1] * 3] * 2
    assert HostCopy(cupy.empty((0, 4))).read().shape == (0, 4)


def test_reading_waits_for_no_later_work(cupy):
    """The later work of a device that is in no hurry is not done when the value has been read."""
    x = cupy.asarray(np.ones(1))
    later, done = HostCopy(x), cupy.cuda.Event(disable_timing=True)
    queue().call(lambda: x.fill(7))
    queue().call(lambda: done.record())
    queue().flush()
    assert later.read()[0] == 1
    is_in_no_hurry = getattr(getattr(cupy, "settings", None), "asynchronous", False)
    assert not (is_in_no_hurry and done.done)
    assert x.get()[0] == 7 and done.done


def test_what_nobody_reads_is_kept_until_it_has_been_written(cupy):
    x = cupy.asarray(np.ones(3))
    later = HostCopy(x)
    queue().flush()
    host = weakref.ref(later._host)
    del later
    assert host() is not None
    cupy.cuda.Device().synchronize()
    HostCopy(x).read()
    assert host() is None


def test_a_run_that_failed_is_told(cupy):
    later = HostCopy(cupy.asarray(np.ones(1)))
    queue().discard()
    with pytest.raises(BackendError, match="never computed"):
        later.read()
