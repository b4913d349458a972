"""`DryCupy`: arrays without memory have the shapes and addresses of those with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.backend import Device
from dynbatch.kernels.runtime.dry_run import DryCupy

VIEWS = {
    "rows": lambda x: x[2:5],
    "columns": lambda x: x[:, 1:3],
    "a row": lambda x: x[-1],
    "an element": lambda x: x[3, 2:3],
    "an axis more": lambda x: x[:, None],
    "nothing": lambda x: x[4:4],
    "transposed": lambda x: x[1:].T,
    "flat": lambda x: x.reshape(-1),
    "in another shape": lambda x: x[:4].reshape(2, 8),
    "in another dtype": lambda x: x.view(np.int32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_lie_where_those_of_numpy_do(name: str) -> None:
    dry, real = DryCupy(0).empty((6, 4), "float32"), np.empty((6, 4), np.float32)
    ours: Any = VIEWS[name](dry)
    theirs: Any = VIEWS[name](real)
    for what in ("shape", "dtype", "strides", "size", "nbytes", "ndim", "itemsize"):
        assert getattr(ours, what) == getattr(theirs, what), what
    assert ours.flags.c_contiguous == theirs.flags.c_contiguous
    if ours.size:
        assert ours.data.ptr - dry.data.ptr == theirs.ctypes.data - real.ctypes.data
    assert len(ours) == len(theirs) and not ours.get().any() and ours.get().shape == theirs.shape


def test_numbers_are_not_there() -> None:
    x: Any = DryCupy(0).empty(3, "float64")
    assert x[0].shape == ()
    for read in (lambda: x[[0, 1]], lambda: x[np.array([True])], lambda: x[::2].reshape(2)):
        with pytest.raises(NotImplementedError, match="without memory"):
            read()
    for compute in (lambda: x + 1, lambda: float(x), lambda: x.fill(1)):
        with pytest.raises((TypeError, AttributeError)):
            compute()


def test_bytes_are_counted_at_once_and_apart_where_they_stand() -> None:
    cupy = DryCupy(2)
    x = cupy.empty((10, 3), "float32")
    view = x[2:]
    del x  # whose memory the view keeps
    y = cupy.empty(5, "float64", stands=True)
    del view
    z = cupy.empty(100, "uint8")
    assert (cupy.books.live, cupy.books.most, cupy.books.standing) == (100, 120, 40)
    assert cupy.books.bytes == 160 and cupy.device == Device(None, True, 2)
    del y, z
    assert (cupy.books.live, cupy.books.most, cupy.books.standing) == (0, 120, 0)


class OfNumpy(db.Operation):
    """Computes by itself, with arrays as they are."""

    __slots__ = ()

    def infer_shape(self, x: Any) -> Any:
        return x

    @classmethod
    def forward_batch(cls, batch: Any, y: Any, x: Any) -> None:
        batch.xp.multiply(x.flat, 2, out=y.flat)

    @classmethod
    def backward_batch(cls, batch: Any, dy: Any, dx: Any) -> None:
        batch.xp.multiply(dy.flat, 2, out=dx.flat)


def test_what_a_type_computes_by_itself_is_left_out() -> None:
    uses = []
    for kind in (lambda x: x, OfNumpy):
        with db.Graph() as graph:
            loss = F.sum(F.tanh(kind(F.input(graph, np.ones((3, 4))).keep())))
            uses.append(graph.estimate(loss, device="cuda"))
            graph.backward(loss)
    without, own = [use.tables_bytes for use in uses]
    assert own >= without > 0
