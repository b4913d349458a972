"""JSON lines: objects, and what is refused and where."""

import pytest

from dynbatch.errors import DataError
from dynbatch.text import read_json_lines


def test_each_line_is_an_object_and_blank_lines_are_none(tmp_path):
    path = tmp_path / "entries.jsonl"
    path.write_text('\ufeff{"words": ["a", "b"], "id": 3}\n\n {"words": []}\r\n')
    assert read_json_lines(path) == [{"words": ["a", "b"], "id": 3}, {"words": []}]
    assert read_json_lines(path, "words") == read_json_lines(path)


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"a": 1', "not JSON: "),
        ("[1, 2]", "not an object of JSON"),
        ("[" * 100_000, "not JSON: "),
        ('{"b": 1}', "(?s)no 'a'.*rule: an object of JSON on each line, {\"a\": …}.*names are b"),
        ("{}", "names are none"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    path = tmp_path / "entries.jsonl"
    path.write_text(f'{{"a": 1}}\n\n{line}\n')
    with pytest.raises(DataError, match=said) as caught:
        read_json_lines(path, "a")
    assert str(caught.value).startswith(f"{path}:3: ")


def test_a_file_without_objects_is_refused(tmp_path):
    path = tmp_path / "entries.jsonl"
    path.write_text("\n")
    with pytest.raises(DataError, match="no object"):
        read_json_lines(path)
