import pytest

from dynbatch.errors import DataError
from dynbatch.text import ParsedSentence, read_conllu, read_tagged

CONTENT = """\
# text = Na bacia.
# sent_id = one
1-2\tNa\t_\t_\t_\t_\t_\t_\t_\t_
1\tEm\tem\tADP\t_\t_\t3\tcase\t_\t_
2\ta\to\tDET\t_\t_\t3\tdet\t_\t_
3\tbacia\tbacia\tNOUN\t_\t_\t0\troot\t_\t_
3.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_


# newpar
1\tFim\tfim\tNOUN\t_\t_\t0\troot\t_\t_"""


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "trees.conllu"
        path.write_text(content, "utf-8")
        return path

    return write


def test_a_sentence_is_its_words_with_their_tree(file):
    first, second = read_conllu(file(CONTENT))
    assert first == ParsedSentence(
        words=("Em", "a", "bacia", "."),
        tags=("ADP", "DET", "NOUN", "PUNCT"),
        heads=(3, 3, 0, 3),
        labels=("case", "det", "root", "punct"),
        lemmas=("em", "o", "bacia", "."),
    )
    assert first.comments == {"text": "Na bacia.", "sent_id": "one"}
    assert second.words == ("Fim",) and second.comments == {"newpar": ""}


def test_tags_are_those_of_read_tagged(file):
    path = file(CONTENT)
    pairs = zip(read_conllu(path), read_tagged(path), strict=True)
    assert all([(a.words, a.tags) == (b.words, b.tags) for a, b in pairs])


@pytest.mark.parametrize(
    ("line", "number", "found"),
    [
        ("1 Fim fim", 14, "1 columns, not ten"),
        ("1\tFim\tfim\tNOUN\t_\t_\t_\troot\t_\t_", 14, "'_' is not the number of a head"),
        ("1\tFim\tfim\tNOUN\t_\t_\t1\tdet\t_\t_", 14, "word 1 is its own head"),
        ("1\t\tfim\tNOUN\t_\t_\t0\troot\t_\t_", 14, "the word is empty"),
        ("2\tFim\tfim\tNOUN\t_\t_\t0\troot\t_\t_", 14, "'2' is not the number of the next word"),
        ("x\tFim\tfim\tNOUN\t_\t_\t0\troot\t_\t_", 14, "'x' is not the number of the next word"),
        (f"1\tFim\tfim\tNOUN\t_\t_\t{'7' * 5000}\tdet\t_\t_", 14, "'777.* is not the number of"),
        ("1\tFim\tfim\tNOUN\t_\t_\t2\tdet\t_\t_", 15, "not have exactly one root"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(file, line, number, found):
    path = file(f"{CONTENT}\n\n{line}\n")
    with pytest.raises(DataError, match=found) as caught:
        read_conllu(path)
    assert str(caught.value).startswith(f"{path}:{number}: ")


@pytest.mark.parametrize("numbers", ["1 3", "1 1", "2 1", "1 1-2", "1 9" + "9" * 5000])
def test_words_are_numbered_in_their_order(file, numbers):
    first, second = [f"{n}\tx\tx\tX\t_\t_\t{{}}\tdet\t_\t_" for n in numbers.split()]
    lines = [first.format(0), second.format(1)]
    path = file("\n".join(lines))
    if "-" in numbers:  # a range, which is left out
        assert read_conllu(path)[0].words == ("x",)
        return
    with pytest.raises(DataError, match="is not the number of the next word") as caught:
        read_conllu(path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("heads", [(0, 3, 2), (2, 1, 0), (2, 3, 4, 2, 0)])
def test_heads_in_a_circle_are_no_tree(file, heads):
    lines = [f"{k}\tx\tx\tX\t_\t_\t{head}\tdet\t_\t_" for k, head in enumerate(heads, 1)]
    first = 1 if heads[0] else 2
    with pytest.raises(DataError, match=f"circle: word {first} does not lead to the root"):
        read_conllu(file("\n".join(lines)))


def test_a_file_without_sentences_is_an_error(file):
    with pytest.raises(DataError, match="no sentence"):
        read_conllu(file("# text = none\n"))
