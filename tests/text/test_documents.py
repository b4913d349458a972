"""Documents of files of text: what is read, and what is refused and where."""

import pytest

from dynbatch.errors import DataError
from dynbatch.text import read_documents


def test_documents_are_read_whatever_ends_their_lines(tmp_path):
    path = tmp_path / "x.txt"
    for content in (b"One\ntwo.\n\n\nThree.", b"\xef\xbb\xbfOne\r\ntwo.\r\n \r\nThree.\r\n"):
        path.write_bytes(content)
        assert read_documents(path) == ["One\ntwo.", "Three."]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"abc\n\xff", r"x.txt:2: byte 1, 0xff, is not UTF-8[^$]*iconv"),
        (b"", "there is no text in it"),
        (b"\n%\n \n", "there is no text in it"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8"),
        (b"o\0n\0e\0", "x.txt:1: it holds a zero byte"),
    ],
)
def test_a_file_that_is_not_text_says_where(tmp_path, content, says):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_documents(path)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_documents(tmp_path)
