"""Arrays as C sees them."""

import numpy as np

from dynbatch.kernels.c.runtime.arrays import address


def test_an_address_is_that_of_the_first_element() -> None:
    whole = np.arange(24.0).reshape(4, 6)
    frozen = whole[1:]
    frozen.flags.writeable = False
    for array in (whole, whole[2:, 3:], whole[:0], frozen, np.float32([3]), np.empty((0, 5))):
        assert address(array) == array.__array_interface__["data"][0]
    assert address(None) is None
