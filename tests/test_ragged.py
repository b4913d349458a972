from types import SimpleNamespace

import numpy as np

from dynbatch.ragged import packed


def test_segments_of_different_widths_are_matrices_of_their_own():
    nodes = [SimpleNamespace(rows=r, width=w) for r, w in ((2, 3), (4, 0), (0, 5), (1, 2))]
    x = packed(np.arange(8.0), nodes)
    assert x.values.shape == (8,) and x.table.shape == (8, 1)
    assert x.starts.tolist() == [0, 6, 6, 6, 8]
    assert [x[k].shape for k in range(4)] == [(2, 3), (4, 0), (0, 5), (1, 2)]
    assert x[0].tolist() == [[0, 1, 2], [3, 4, 5]] and x[3].tolist() == [[6, 7]]
    assert x.like(-x.values)[3].tolist() == [[-6, -7]]


def test_segments_of_one_width_are_rows():
    x = packed(np.arange(6.0), [SimpleNamespace(rows=r, width=2) for r in (2, 0, 1)])
    assert x.widths is None and x.values.shape == x.table.shape == (3, 2)
    assert x.starts.tolist() == [0, 4, 4, 6]
    assert x.shape(0) == (2, 2) and x[2].tolist() == [[4, 5]]
