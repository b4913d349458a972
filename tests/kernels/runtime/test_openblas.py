import os
import threading

import pytest

from dynbatch.kernels.runtime import openblas
from tests.forks import in_child


def test_one_thread_restores_what_it_found():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before = get()
    put(2)
    with openblas.one_thread():
        assert get() == 1
    assert get() == 2
    with pytest.raises(KeyError), openblas.one_thread():
        raise KeyError
    assert get() == 2
    put(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_is_inside_has_nobody_inside():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before, inside, over = get(), threading.Event(), threading.Event()
    put(2)

    def stay():
        with openblas.one_thread():
            inside.set()
            over.wait()

    def is_as_outside():
        found = [get()]
        with openblas.one_thread():
            found.append(get())
        return [*found, get()] == [2, 1, 2]

    def is_still_inside():
        with openblas.one_thread():
            pass
        return get() == 1

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    assert in_child(is_as_outside)
    with openblas.one_thread():
        assert in_child(is_still_inside)
    over.set()
    thread.join()
    assert get() == 2
    put(before)


def test_the_kernels_of_openblas_have_a_name():
    assert openblas.core_name()
