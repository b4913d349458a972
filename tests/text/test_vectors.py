"""Word vectors: both forms, what is wanted, what is damaged, and a table of them."""

import gzip

import numpy as np
import pytest

from dynbatch.errors import ArgumentError, DataError
from dynbatch.text import PretrainedVectors, Vocabulary, read_vectors, vector_files
from dynbatch.text.vocabulary import MARKS

WORDS = ["the", "naïve", ".", "fox", "</s>"]
MATRIX = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)


def text_of(words=WORDS, matrix=MATRIX, header=False, end="\n"):
    lines = [f"{len(words)} {matrix.shape[1]}"] * header
    lines += [
        f"{word} {' '.join(map(str, row))}"
        for word, row in zip(words, matrix.tolist(), strict=True)
    ]
    return "".join([line + end for line in lines]).encode()


def binary_of(words=WORDS, matrix=MATRIX, between=b"\n"):
    records = [
        word.encode() + b" " + row.astype("<f4").tobytes() + between
        for word, row in zip(words, matrix, strict=True)
    ]
    return f"{len(words)} {matrix.shape[1]}\n".encode() + b"".join(records)


CONTENTS = {
    "GloVe": text_of(),
    "word2vec": text_of(header=True, end=" \n"),
    "windows": b"\xef\xbb\xbf" + text_of(end="\r\n"),
    "tabs": text_of().replace(b" ", b"\t"),
    "no end": text_of(header=True)[:-1],
    "blank lines": text_of().replace(b"\n", b"\n\n"),
    "binary": binary_of(),
    "gensim": binary_of(between=b""),
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "vectors"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", CONTENTS)
def test_words_and_vectors_are_those_of_the_file(file, form, pack):
    vectors = read_vectors(file(pack(CONTENTS[form])))
    assert vectors.words == WORDS and vectors.matrix.dtype == np.float32
    assert np.array_equal(vectors.matrix, MATRIX)


@pytest.mark.parametrize("form", CONTENTS)
def test_only_words_of_the_vocabulary_are_read(file, form):
    """A mark is no word of it."""
    vectors = read_vectors(file(CONTENTS[form]), Vocabulary(["fox", "hen", "naïve"]))
    assert vectors.words == ["naïve", "fox"]
    assert np.array_equal(vectors.matrix, MATRIX[[1, 3]])
    assert len(vectors.matrix) == len(vectors) == 2


@pytest.mark.parametrize("size", [16, 100, 331])
@pytest.mark.parametrize("form", CONTENTS)
def test_small_blocks_read_the_same(file, form, size, monkeypatch):
    """A line or a record begins in one block and ends in another, or takes several."""
    monkeypatch.setattr(vector_files, "BLOCK_BYTES", size)
    vectors = read_vectors(file(CONTENTS[form]))
    assert vectors.words == WORDS and np.array_equal(vectors.matrix, MATRIX)


@pytest.mark.parametrize("form", CONTENTS)
def test_a_limit_counts_vectors_of_the_file(file, form):
    path = file(CONTENTS[form])
    assert read_vectors(path, limit=3).words == WORDS[:3]
    assert read_vectors(path, Vocabulary(["the", "fox"]), limit=3).words == ["the"]
    assert read_vectors(path, limit=50).words == WORDS


def test_a_word_may_have_spaces_and_the_first_of_equal_ones_counts(file):
    content = b"the 1 2\n. . . 3 4\n. 5 6\nthe 7 8\nat name@domain.com 9 10\n"
    vectors = read_vectors(file(content))
    assert vectors.words == ["the", ". . .", ".", "at name@domain.com"]
    assert vectors.matrix.tolist() == [[1, 2], [3, 4], [5, 6], [9, 10]]


def test_one_feature_is_enough(file):
    assert read_vectors(file(b"the 1\nfox 2\n")).matrix.tolist() == [[1], [2]]
    assert read_vectors(file(b"2 1\nthe 1\nfox 2\n")).words == ["the", "fox"]
    content = binary_of(matrix=MATRIX[:, :1])
    assert np.array_equal(read_vectors(file(content)).matrix, MATRIX[:, :1])


def test_many_words_make_the_matrix_grow(file):
    words = [f"w{k}" for k in range(5000)]
    matrix = np.arange(10000, dtype=np.float32).reshape(5000, 2)
    for content in (text_of(words, matrix), binary_of(words, matrix)):
        for pack in (bytes, gzip.compress):
            vectors = read_vectors(file(pack(content)))
            assert vectors.words == words and np.array_equal(vectors.matrix, matrix)


DAMAGED = {
    "a number too few": (b"the 1 2\nfox 1\n", r"vectors:2: 1 numbers behind the word, the first"),
    "a number too many": (b"the 1 2\n\nfox 1 2 3\n", r"vectors:3: 3 numbers behind the word"),
    "not a number": (b"the 1 2\nfox 1 x2\n", r"vectors:2: 'x2' is not a finite number"),
    "not finite": (b"2 2\nthe 1 2\nfox 1 nan\n", r"vectors:3: 'nan' is not a finite number"),
    "no word": (b"the 1 2\n 1 2\n", r"vectors:2: .*\n  line: ' 1 2'"),
    "too few lines": (b"3 2\nthe 1 2\nfox 1 2\n", r"says 3 vectors of 2 numbers, 2 are there"),
    "too many lines": (b"1 2\nthe 1 2\nfox 1 2\n", r"says 1 vectors of 2 numbers, 2 are there"),
    "nothing": (b"", r"vectors:1: not a word and its numbers"),
    "words alone": (b"the\nfox\n", r"vectors:1: not a word and its numbers"),
    "a word that is not UTF-8": (b"the 1 2\nf\xffx 1 2\n", r"vectors:2: the word 'f.x' is not UTF"),
    "records that end": (binary_of()[:-20], r"says 5 vectors of 7 numbers, 4 are there"),
    "a record that is not finite": (
        binary_of(matrix=np.where(np.arange(5)[:, None] == 3, np.nan, MATRIX)),
        r"vectors, record 4: a number is not finite",
    ),
    "a record without a word": (
        binary_of(["the", "", "a", "b", "c"]), r"vectors, record 2: no word",
    ),
    "zip": (b"PK\x03\x04...", r"it is compressed.\n  fix:  unzip"),
    "half of gzip": (gzip.compress(text_of())[:-30], r"vectors: cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_damaged_is_named(file, damage):
    content, message = DAMAGED[damage]
    with pytest.raises(DataError, match=message):
        read_vectors(file(content))


def test_a_first_line_that_promises_too_much_takes_no_memory(file):
    for rest in (b"the 1 2\n", b"the \0\0\0\0\0\0\0\0"):
        with pytest.raises(DataError, match="says 999,999,999,999,999 vectors"):
            read_vectors(file(b"999999999999999 2\n" + rest))


def test_a_first_line_of_more_digits_than_a_number_has_is_named(file):
    with pytest.raises(DataError, match="2 numbers behind the word, the first line has 1"):
        read_vectors(file(b"9" * 5000 + b" 2\nthe 1 2\n"))


def test_damage_in_other_words_than_the_wanted_does_not_matter(file):
    content = b"the 1 2\nf\xffx 3 4\nnan x y\nhen 5 6\n"
    assert read_vectors(file(content), Vocabulary(["hen"])).matrix.tolist() == [[5, 6]]


def test_an_absent_file_and_a_folder_are_data_errors(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_vectors(path)


def test_a_limit_below_one_is_refused(file):
    with pytest.raises(ArgumentError, match="limit"):
        read_vectors(file(b"the 1 2\n"), limit=0)


def test_a_table_has_known_rows_and_draws_the_others():
    """The deviation is that of the vectors found, about 0."""
    vocabulary = Vocabulary([*[f"new{k}" for k in range(2000)], "fox", "the"])
    vectors = read_vectors_of(MATRIX * 3)
    table = vectors.table(vocabulary, rng=1)
    assert table.shape == (len(vocabulary), 7) and table.dtype == np.float32
    ids = vocabulary.encode(["fox", "the"])
    assert np.array_equal(table[ids], vectors.matrix[[3, 0]])
    others = table[: len(MARKS) + 2000]
    assert others.std() == pytest.approx(np.sqrt(np.mean(vectors.matrix**2)), rel=0.02)
    assert abs(others.mean()) < 0.1
    assert np.array_equal(vectors.table(vocabulary, rng=1), table)
    assert vectors.table(vocabulary, scale=0.0)[: len(MARKS)].tolist() == [[0.0] * 7] * len(MARKS)


def read_vectors_of(matrix):
    return PretrainedVectors(list(WORDS), matrix)


def test_a_table_of_no_known_word_is_refused_unless_its_scale_is_given(file):
    vocabulary = Vocabulary(["The", "Fox"])
    vectors = read_vectors(file(text_of()), vocabulary)
    assert len(vectors) == 0 and vectors.matrix.shape == (0, 7)
    with pytest.raises(ArgumentError, match="lower-case words only"):
        vectors.table(vocabulary)
    assert vectors.table(vocabulary, scale=0.1).shape == (5, 7)


def test_rows_that_were_found_are_those_of_the_file_in_the_table(file):
    vectors = read_vectors(file(CONTENTS["GloVe"]))
    vocabulary = Vocabulary(["hen", "fox", "den", "the"])
    found = vectors.found(vocabulary)
    assert [vocabulary.tokens[k] for k in found] == ["fox", "the"] and found.dtype == np.int64
    assert np.array_equal(vectors.table(vocabulary)[found], MATRIX[[3, 0]])
    assert vectors.found(Vocabulary(["hen"])).tolist() == []
