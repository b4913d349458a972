"""Files of labelled texts: columns, CSV and JSON lines, and the lines that are refused."""

import pytest

from dynbatch.errors import DataError
from dynbatch.text import read_labelled


def read(tmp_path, content, name="mails.tsv"):
    path = tmp_path / name
    path.write_bytes(content.encode())
    return [(one.label, one.text) for one in read_labelled(path)]


MAILS = [("ham", "See you."), ("spam", "You won, you!"), ("ham", "See me.")]


@pytest.mark.parametrize(
    "line, name, first",
    [
        ("{0}\t{1}", "mails.tsv", ""),
        ("{1}\t{0}", "mails.tsv", ""),
        ('"{1}",{0}', "mails.csv", ""),
        ('{0},7,"{1}"', "MAILS.CSV", "Label,id,Text\n"),
        ("7\t{1}\t{0}\t8", "mails.tsv", "id\tsentence\tlabel\tage\n"),
        ('{{"text": "{1}", "label": "{0}", "id": 1}}', "mails.jsonl", ""),
    ],
)
def test_every_form_gives_the_same_texts(tmp_path, line, name, first):
    lines = [line.format(label, text) for label, text in MAILS]
    assert read(tmp_path, "\ufeff" + first + "\r\n".join(lines) + "\r\n\n", name) == MAILS


def test_csv_has_quotes_and_line_ends_in_fields(tmp_path):
    content = 'ham,"He said ""hi""\nand left"\nspam,x\nham,y\n'
    assert read(tmp_path, content, "mails.csv")[0] == ("ham", 'He said "hi"\nand left')


def test_numbers_and_truth_values_are_labels_of_json(tmp_path):
    content = '{"text": "a", "label": 1}\n{"text": "b", "label": false}\n'
    assert read(tmp_path, content) == [("1", "a"), ("false", "b")]


@pytest.mark.parametrize(
    "content, name, said",
    [
        ("a\tb\nc\n", "x.tsv", ":2: 1 column, the first line has 2.*line: 'c'"),
        ("a\tb\tc\n", "x.tsv", ":1: 3 columns.*fix:  take two columns"),
        ("ham\tx\nham\t \n", "x.tsv", ":2: an empty text or label"),
        ('ham,x\nham,"y\n', "x.csv", ":2: unexpected end of data.*doubled"),
        ('{"text": "a", "label": "b"}\n{"text": "a"\n', "x.jsonl", ":2: not JSON"),
        ('{"text": "a", "label": "b"}\n[1]\n', "x.jsonl", ":2: not an object of JSON"),
        ('\n{"text": "a"}\n', "x.jsonl", ':2: "text" is \'a\', "label" is not there'),
        ('{"text": "", "label": 2.5}\n', "x.jsonl", ':1: "text" is \'\', "label" is 2.5'),
        ("\n", "x.tsv", ": no text"),
        ("label\ttext\n", "x.tsv", ": no text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, name, said):
    with pytest.raises(DataError, match=f"(?s){name}{said}"):
        read(tmp_path, content, name)
