"""Files of pairs: what is read, and what is refused and where."""

import pytest

from dynbatch.errors import ArgumentError, DataError
from dynbatch.text import ParallelText, read_pairs


@pytest.fixture
def write(tmp_path):
    def write_bytes(content: bytes):
        path = tmp_path / "pairs.tsv"
        path.write_bytes(content)
        return path

    return write_bytes


def test_a_line_is_a_pair_of_texts(write):
    path = write("ein Haus\ta house\nBär\tbear\n".encode())
    assert read_pairs(path) == [
        ParallelText("ein Haus", ("a house",)),
        ParallelText("Bär", ("bear",)),
    ]


def test_lines_with_the_same_source_become_one_example_with_several_references(write):
    path = write(b"a\tx\nb\ty\na\tz\n")
    assert read_pairs(path) == [ParallelText("a", ("x", "z")), ParallelText("b", ("y",))]


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_do_no_harm(write):
    path = write(b"\xef\xbb\xbfa b\tc\r\n\r\n  \nd\te")
    assert read_pairs(path) == [ParallelText("a b", ("c",)), ParallelText("d", ("e",))]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"no tab here", "found no tab"),
        (b"two\ttabs\there", "found 2 tabs"),
        (b"\tno source", "nothing on one side"),
        (b"no target\t ", "nothing on one side"),
        (b"latin \xe4\tx", "byte 7, 0xe4, is not UTF-8"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(write, line, found):
    path = write(b"good\tline\n\n" + line + b"\nanother\tone\n")
    with pytest.raises(DataError, match=found) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "fix:" in str(caught.value)


def test_a_file_without_pairs_is_refused(write):
    with pytest.raises(DataError, match=r"no pair\.\n  rule: source<TAB>target"):
        read_pairs(write(b"\n\n"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.tsv: cannot be read: No such file"):
        read_pairs(tmp_path / "none.tsv")


def test_a_text_in_place_of_its_tuple_is_refused():
    with pytest.raises(ArgumentError, match=r"fix:  ParallelText\(source, \(target,\)\)"):
        ParallelText("ein Haus", "a house")
