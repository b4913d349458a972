import numpy as np

from dynbatch.kernels import images as kernels


def test_padding_behind_may_be_another():
    front = kernels.window_patches(np.array([(2, 1)]), (1, 2), (1, 1), (0, 0), (1, 1), (0, 1))
    assert front.sides.tolist() == [[2, 1, 2, 1]]
    rows = [row.tolist() for row in front.rows(slice(0, 2))]
    assert rows == [[0, 1], [-1, -1]]


def test_the_place_of_minus_infinity_is_inside_the_image():
    patches = kernels.window_patches(np.array([(2, 2)]), (3, 3), (1, 1), (1, 1))
    x, y, place = np.full((4, 1), -np.inf), np.empty((4, 1)), np.empty((4, 1), np.int64)
    kernels.max_patches(x, patches, y, place)
    assert place[:, 0].tolist() == [4, 3, 1, 0]
