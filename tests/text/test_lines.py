"""Lines of files: byte order marks, line ends, and what is not UTF-8."""

import bz2
import gzip
import lzma

import pytest

from dynbatch.errors import DataError
from dynbatch.text import read_lines, read_pairs
from dynbatch.text.lines import numbered_lines


def test_byte_order_marks_and_line_ends_are_no_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffäh\r\n\r\n\ufeffb \n".encode())
    assert list(numbered_lines(path)) == [(1, "äh"), (2, ""), (3, "\ufeffb ")]


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
        list(numbered_lines(path))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "nones.txt").write_text("")
    with pytest.raises(DataError, match=r"none\.txt: cannot be read: No such(.|\n)*nones\.txt\?"):
        list(numbered_lines(tmp_path / "none.txt"))


def test_lines_with_text_are_read_without_blanks_around_them(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeff The fox\r\n \t\n\nBZh is no archive".encode())
    assert read_lines(path) == ["The fox", "BZh is no archive"]
    path.write_text(" \n\n")
    with pytest.raises(
        DataError, match=r"text\.txt: no line with text\.\n  rule: one entry on each"
    ):
        read_lines(path)


@pytest.mark.parametrize("read", [read_lines, read_pairs])
@pytest.mark.parametrize(
    "compress, program",
    [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz")],
)
def test_what_is_compressed_is_told_with_the_program_that_takes_it_apart(
    tmp_path, read, compress, program
):
    path = tmp_path / "text.txt"
    path.write_bytes(compress(b"a\tb\n" * 9))
    with pytest.raises(DataError, match=rf"it is compressed\.\n  fix:  {program} "):
        read(path)
