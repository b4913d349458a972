import pytest

from dynbatch.kernels import windows as kernels


@pytest.mark.parametrize(
    ("rows", "how", "count"),
    [
        (5, (3, 1, 0), 3), (5, (3, 2, 0), 2), (2, (3, 1, 0), 0), (0, (3, 1, 0), 0),
        (0, (3, 1, 2), 2), (1, (3, 1, 2), 3), (6, (3, 3, 0), 2), (5, (1, 1, 0), 5),
    ],
)  # fmt: skip
def test_windows_are_counted(rows, how, count):
    assert kernels.count_windows(rows, *how) == count
