"""Lines of files: byte order marks, line ends, and what is not UTF-8."""

import pytest

from dynbatch.errors import DataError
from dynbatch.text.lines import read_lines


def test_byte_order_marks_and_line_ends_are_no_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffäh\r\n\r\n\ufeffb \n".encode())
    assert list(read_lines(path)) == [(1, "äh"), (2, ""), (3, "\ufeffb ")]


@pytest.mark.parametrize(
    "content, said",
    [
        (b"a\nb\xe4\n", "text.txt:2: byte 2, 0xe4, is not UTF-8.*LATIN1"),
        ("a\n".encode("utf-16"), "text.txt:1: byte 1, 0xff, is not UTF-8.*UTF-16"),
        ("a\n".encode("utf-16-le"), "text.txt:1: it holds a zero byte.*UTF-16"),
    ],
)
def test_what_is_not_utf8_is_named_by_its_line(tmp_path, content, said):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"(?s){said}"):
        list(read_lines(path))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read: No such"):
        list(read_lines(tmp_path / "none.txt"))
