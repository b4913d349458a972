"""Documents in tokens: every token predicted once, and files that are read or refused."""

import numpy as np
import pytest

from dynbatch.errors import DataError
from dynbatch.tasks.documents import DocumentTokenizer, pieces, read_documents

BYTES = DocumentTokenizer(None)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 17])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_every_token_of_a_cut_document_is_predicted_once_with_context(length, overlap):
    ids = (
        BYTES.whole("x" * length)
        if length < 2
        else BYTES.whole("".join(map(chr, range(40, 40 + length))))
    )
    found = list(pieces(ids, 4, overlap))
    predicted = [piece.ids[1 + piece.context :] for piece in found]
    assert np.concatenate(predicted).tolist() == ids[1:].tolist()
    assert [piece.num_predicted for piece in found] == [part.size for part in predicted]
    assert all(piece.ids.size <= 5 for piece in found)
    assert [piece.context for piece in found] == [0, *[overlap] * (len(found) - 1)]


@pytest.mark.parametrize(("characters", "length"), [(None, 9), ("naïve\n", 8)])
def test_documents_stand_between_marks_and_come_back(characters, length):
    tokenizer = DocumentTokenizer(characters)
    ids = tokenizer.whole("naïve\n")
    assert ids[0] == ids[-1] == tokenizer.mark == len(tokenizer) - 1 and len(ids) == length
    assert tokenizer.decode(ids) == "naïve\n"
    assert tokenizer.encode("naïve\n").tolist() == ids[:-1].tolist()


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
