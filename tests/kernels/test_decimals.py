"""Lines of words and numbers: the words, the numbers to the bit, and what is damaged."""

import numpy as np
import pytest

from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.decimals import read_rows, split_lines

FORMS = [
    "0", "-0", "+1", "1.", ".5", "-.5e1", "1e-3", "1E+05", "00012.50", "0.1000000000000000055511",
    "123456789012345678", "9007199254740993", "3.4028235e38", "1.17549435e-38", "1e-45", "1e-60",
    "16777217", "16777219e10", "0.3333333432674407958984375", "1.00000005960464477539", "7e22",
    "7e23", "0.00000000000000000000001", "18446744073709551616", "1e00000000001",
]  # fmt: skip
"""Numbers that a float32 holds, in forms that a reader may get wrong."""

DAMAGED = ["", "x", "1x", "1e", "e1", ".", "-", "--1", "1..2", "nan", "inf", "-Infinity", "1e39",
           "3.5e38", "1_000", "0x1p3", "1,5", "1e+", "\u0661"]  # fmt: skip


@pytest.fixture(params=["c", "numpy"], autouse=True)
def version(request):
    """Each test for both versions."""
    if request.param == "c" and library.reason():
        pytest.skip(library.reason())
    before, library.switch.is_off = library.switch.is_off, request.param == "numpy"
    yield
    library.switch.is_off = before


def read(text, width, rows=None):
    """The words of lines, their numbers, and the lines that are damaged."""
    content = text.encode()
    array = np.frombuffer(content, np.uint8)
    spans = split_lines(array, width)
    out = np.full((spans.shape[1], width), 77, np.float32)
    rows = np.arange(spans.shape[1]) if rows is None else np.array(rows)
    damaged = read_rows(array, spans, rows, out)
    words = [content[begin:end].decode() for begin, end, _ in spans.T.tolist()]
    return words, out, damaged.tolist()


def test_a_word_is_all_before_the_last_numbers():
    text = "the 1 2\nof\t3\t4  \r\n. . 5 6\nnor 7\n\nlong 8 9"
    words, out, damaged = read(text, 2, [0, 1, 2, -1, -1, 5])
    assert words == ["the", "of", ". .", "", "", "long"]
    assert out[[0, 1, 2, 5]].tolist() == [[1, 2], [3, 4], [5, 6], [8, 9]]
    assert (out[[3, 4]] == 77).all() and damaged == []


def test_numbers_are_those_of_python_rounded_to_float32():
    text = "".join([f"w {form}\n" for form in FORMS])
    _, out, damaged = read(text, 1)
    expected = np.array([float(form) for form in FORMS]).astype(np.float32)
    assert out[:, 0].tobytes() == expected.tobytes()
    assert damaged == []


@pytest.mark.parametrize("form", ["{:.5g}", "{:.9g}", "{:.17g}", "{:.6f}", "{:.12e}", "{!r}"])
def test_random_numbers_are_those_of_python_rounded_to_float32(form):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 7)) * 10.0 ** rng.integers(-12, 12, (200, 7))
    fields = [[form.format(value) for value in row] for row in values.tolist()]
    _, out, damaged = read("".join([f"w {' '.join(row)}\n" for row in fields]), 7)
    expected = np.array(fields, "S").astype(np.float64).astype(np.float32)
    assert out.tobytes() == expected.tobytes() and damaged == []


def test_halves_between_two_floats_are_rounded_as_by_python():
    """Around each midpoint a digit in the 17th place or behind it decides."""
    low = np.random.default_rng(1).uniform(0.1, 1, 50).astype(np.float32)
    halves = (low.astype(np.float64) + np.nextafter(low, np.float32(2)).astype(np.float64)) / 2
    fields = [f"{half:.{k}f}" for half in halves for k in (15, 16, 17, 18, 19)]
    _, out, damaged = read("".join([f"w {field}\n" for field in fields]), 1)
    assert out[:, 0].tobytes() == np.array(fields, float).astype(np.float32).tobytes()
    assert damaged == []


@pytest.mark.parametrize("field", DAMAGED)
def test_what_is_not_a_finite_number_is_found(field):
    _, out, damaged = read(f"w 1 2 3\nw 1 {field} 3\nw 4 5 6\n", 3)
    assert damaged == [1]
    assert out[[0, 2]].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_damage_in_lines_that_are_not_read_does_not_matter():
    _, out, damaged = read("w 1\nw x\nw 2\n", 1, [0, -1, 1])
    assert damaged == [] and out[:2, 0].tolist() == [1, 2]


def test_a_line_of_thousands_of_fields_is_counted_whole():
    """Blanks are counted in lanes of one byte."""
    fields = [str(k % 10) for k in range(70_000)]
    words, out, damaged = read(f"w {' '.join(fields)}\n", 70_000)
    assert words == ["w"] and damaged == []
    assert out[0].tolist() == [k % 10 for k in range(70_000)]


def test_no_text_has_no_lines():
    words, out, damaged = read("", 3)
    assert words == [] and out.shape == (0, 3) and damaged == []
