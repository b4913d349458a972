"""Operands of one call are cut alike: as plain rows, in planes, or in several calls."""

import numpy as np

from dynbatch.compiler.buffers import Columns, ProgramBuffer, Role
from dynbatch.compiler.numpy.views import ColumnView, alike, cut

ROWS = 3


def buffer(width, plane=0):
    return ProgramBuffer(Role.PACKED, f"{width}_{plane}", width, packed=True, plane=plane)


def array_of(source):
    """An array for a buffer, and its values row by row."""
    rows = np.arange(ROWS * source.width).reshape(ROWS, source.width)
    if not source.plane:
        return rows, rows
    return rows.reshape(ROWS, source.planes, source.plane).swapaxes(0, 1).copy(), rows


def shapes_of(*operands):
    """The shapes of each call's operands, whose values are checked."""
    shapes = []
    ends = [column for _, column, _ in operands]
    for views in alike([Columns(*operand) for operand in operands]):
        arrays = []
        for k, (view, (source, _, _)) in enumerate(zip(views, operands, strict=True)):
            array, rows = array_of(source)
            taken = cut(array, view)
            plain = taken.swapaxes(0, 1).reshape(ROWS, -1) if taken.ndim == 3 else taken
            assert (plain == rows[:, ends[k] : ends[k] + view.width]).all()
            ends[k] += view.width
            arrays.append(taken.shape)
        shapes.append(arrays)
    assert ends == [column + width for _, column, width in operands]
    return shapes


def test_plain_rows_are_one_call():
    assert shapes_of((buffer(6), 2, 4), (buffer(4), 0, 4)) == [[(ROWS, 4), (ROWS, 4)]]


def test_a_part_of_one_plane_is_plain_rows():
    assert shapes_of((buffer(8, 4), 4, 4), (buffer(4), 0, 4)) == [[(ROWS, 4), (ROWS, 4)]]


def test_plain_rows_beside_planes_are_seen_in_planes():
    shapes = shapes_of((buffer(12, 4), 4, 8), (buffer(8), 0, 8))
    assert shapes == [[(2, ROWS, 4), (2, ROWS, 4)]]


def test_planes_of_two_widths_are_cut_at_the_edges_of_both():
    shapes = shapes_of((buffer(12, 4), 0, 12), (buffer(12, 6), 0, 12))
    assert shapes == [[(ROWS, width)] * 2 for width in (4, 2, 2, 4)]


def test_columns_that_begin_inside_a_plane_are_cut_at_its_edge():
    shapes = shapes_of((buffer(8, 4), 2, 4), (buffer(4), 0, 4))
    assert shapes == [[(ROWS, 2)] * 2] * 2


def test_no_rows_have_views_too():
    source = buffer(8)
    assert cut(np.empty((0, 8)), ColumnView(source, 0, 8, 4)).shape == (2, 0, 4)
