"""Files of tagged sentences: columns and CoNLL-U, and the lines that are refused."""

import pytest

from dynbatch.errors import DataError
from dynbatch.text import read_tagged

CONLLU = """\
# sent_id = 1
# text = Vai ao mar.
1\tVai\tir\tVERB\t_\t_\t0\troot\t_\t_
2-3\tao\t_\t_\t_\t_\t_\t_\t_\t_
2\ta\ta\tADP\t_\t_\t4\tcase\t_\t_
3\to\to\tDET\t_\t_\t4\tdet\t_\t_
3.1\tlá\tlá\tADV\t_\t_\t_\t_\t_\t_
4\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
"""


def read(tmp_path, content):
    path = tmp_path / "tagged"
    path.write_bytes(content.encode())
    return [list(zip(one.words, one.tags, strict=True)) for one in read_tagged(path)]


@pytest.mark.parametrize("tab", ["\t", " "])
def test_sentences_end_at_blank_lines(tmp_path, tab):
    content = "The\tDT\r\ncat\tNN\r\n\r\n \r\n#\tSYM\r\n\r\n".replace("\t", tab)
    assert read(tmp_path, content) == [[("The", "DT"), ("cat", "NN")], [("#", "SYM")]]


def test_the_first_of_several_columns_is_the_word_and_the_last_its_tag(tmp_path):
    content = "-DOCSTART- -X- -X- O\n\nU.N. NNP I-NP I-ORG\nofficial NN I-NP O\n"
    assert read(tmp_path, content) == [[("U.N.", "I-ORG"), ("official", "O")]]


def test_a_sentence_may_be_a_line_of_words_with_slashes(tmp_path):
    content = "The/DT 1/2/CD\n\n//SYM\n"
    assert read(tmp_path, content) == [[("The", "DT"), ("1/2", "CD")], [("/", "SYM")]]


def test_words_of_conllu_have_their_upos(tmp_path):
    assert read(tmp_path, CONLLU) == [
        [("Vai", "VERB"), ("a", "ADP"), ("o", "DET"), ("mar", "NOUN")]
    ]


@pytest.mark.parametrize(
    "content, said",
    [
        ("a\tX\nb\n", ":2: 1 column, the first line has 2.*line: 'b'.*rule: word<TAB>tag"),
        ("word\n", ":1: 1 column"),
        ("a\tX\nb\t\n", ":2: an empty word or tag"),
        ("a/X\n\nb/\n", ":3: a word without a tag"),
        ("\n \n", "no sentence"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, said):
    with pytest.raises(DataError, match=f"(?s)tagged:? ?{said}"):
        read(tmp_path, content)
