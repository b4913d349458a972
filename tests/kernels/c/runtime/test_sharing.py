"""Threads share the rows of a C function, each once."""

from dynbatch.kernels.c.runtime.sharing import share_rows
from dynbatch.kernels.runtime import parallel


def test_each_row_is_given_once_and_small_arrays_are_one_call() -> None:
    calls: list[tuple[int, ...]] = []

    def function(*arguments: int) -> None:
        calls.append(arguments)

    before = parallel.num_threads()
    parallel.set_num_threads(3)
    try:
        share_rows(function, 10, 100, 7, least=300)
        assert sorted(calls) == [(0, 3, 7), (3, 6, 7), (6, 10, 7)]
        calls.clear()
        share_rows(function, 10, 100, least=600)
        share_rows(function, 0, 0)
        assert calls == [(0, 10), (0, 0)]
    finally:
        parallel.set_num_threads(before)
