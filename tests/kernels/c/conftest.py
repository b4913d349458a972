"""Tests of the C versions skip where no C compiler is."""

import pytest

from dynbatch.kernels.c.runtime import library


@pytest.fixture(autouse=True)
def needs_c() -> None:
    if library.reason():
        pytest.skip(library.reason())
