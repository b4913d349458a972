"""The task that a file's form tells, and the error where it tells none."""

import gzip
import os

import numpy as np
import pytest

from dynbatch.errors import DataError
from dynbatch.tasks.forms import MOST_BYTES, task_of

WORDS = [f"word{k}" for k in range(50)]


def sentences(count):
    """Sentences of one to nine words, most of which differ."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 1 + k % 9)) for k in range(count)]


def lines(pattern, count=40, labels=("ham", "spam")):
    """Lines of a pattern with a text, another text, and one of few labels."""
    texts = sentences(2 * count)
    return "".join(
        pattern.format(text=texts[k], other=texts[count + k], label=labels[k % len(labels)])
        for k in range(count)
    )


TAGGED = "The DT\ncat NN\nsees VB\n\nThe DT\ndog NN\n\nThe DT\nend NN\n"
CONLLU = "# text = Vai\n1\tVai\tir\tVERB\t_\t_\t0\troot\t_\t_\n\n"


@pytest.mark.parametrize(
    "content, name, task, seen",
    [
        ("Once upon\na time.\n\nThe end.\n", "tale.txt", "language-model", "text without tabs"),
        ("one\n%\ntwo\n", "fortunes", "language-model", "text without tabs"),
        ("x = 1\n" * 60 + "\ty\n", "code.py", "language-model", "text without tabs"),
        (lines("{text}\t{other}\n"), "pairs.tsv", "translation", "sources and targets"),
        ("a b\tc d\n", "one.tsv", "translation", "sources and targets"),
        (lines("{label}\t{text}\n"), "mails.tsv", "classification", "the first is the label"),
        (lines("{text}\t{label}\r\n\r\n"), "mails.txt", "classification", "the second is the"),
        (lines('"{text}, {other}",{label}\n'), "mails.csv", "classification", "the second is"),
        (
            lines("{label}\t{text}\n", labels=["ham"]),
            "x",
            "classification",
            "columns have 1 and 40",
        ),
        ("id\ttext\tlabel\n0\ta\tb\n", "x.tsv", "classification", "its first line names"),
        ('{"text": "a", "label": 1}\n', "x.jsonl", "classification", "each line is JSON"),
        (TAGGED, "tagged", "tagging", "a word and its tag"),
        (TAGGED.replace(" ", "\t"), "tagged.tsv", "tagging", "a word and its tag"),
        (TAGGED.replace(" ", " X "), "conll.txt", "tagging", "a word and its tag"),
        (CONLLU, "x.conllu", "tagging", "CoNLL-U"),
        (CONLLU.replace("\t", "  "), "x.conllu", "tagging", "CoNLL-U"),
        (
            "20 cups of tea for two is more than enough\nhe said.\n",
            "tea.txt",
            "language-model",
            "text without tabs",
        ),
        ("The/DT cat/NN\n\nSleep/VB\n", "x.txt", "tagging", "behind a slash"),
    ],
)
def test_a_form_tells_the_task(tmp_path, content, name, task, seen):
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + content.encode())
    found, said = task_of(path)
    assert found == task and seen in said
    assert said.endswith(f"It is read for {task}; --task chooses another.")


def test_a_form_is_told_by_the_first_lines_of_a_large_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join([f"source {k}\ttarget {k}\n" for k in range(MOST_BYTES // 10)]))
    assert ": in the first " in task_of(path)[1]


@pytest.mark.parametrize(
    "content, problem",
    [
        (b" \n\n", "it is empty"),
        (b'{"source": "a"}\n', 'the first has no "text" and "label"'),
        (b"(3 (2 a) (1 b))\n(2 c)\n", "trees in brackets, which dynbatch.text.read_trees"),
        (b"a\tb\tc\nd\te\n", "1 of 2 lines, such as 1, are not two columns"),
        (
            b"a\tb\nc\td\n" * 5,
            "in 10 lines its columns have 2 and 2 different values; these may be",
        ),
        (lines("{label}\t{text}\n", 12, ["a", "b", "c"]).encode(), "columns have 3 and 12"),
    ],
)
def test_where_it_tells_nothing_all_forms_are_shown(tmp_path, content, problem):
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        task_of(path)
    said = str(caught.value)
    assert max(map(len, said.splitlines()[1:])) <= 80
    assert problem in said and "--task translation" in said
    assert all(f"    {task}: " in said for task in ("tagging", "classification", "language-model"))


def test_a_file_that_is_not_text_is_told_so(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"text"))
    with pytest.raises(DataError, match=r"it is compressed\.\n  fix:  gunzip"):
        task_of(path)
    path.write_bytes(b"ok\nna\xefve\n")
    with pytest.raises(DataError, match=r"text\.gz:2: byte 3, 0xef, is not UTF-8"):
        task_of(path)


def test_the_end_of_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "pairs.tsv"
    content = lines("{text}\t{other} ä\n", 60 * MOST_BYTES // 4000).encode()
    assert len(content) > MOST_BYTES
    for cut in (0, 1):  # whichever byte of a letter the beginning ends at
        path.write_bytes(b"x" * cut + content + b"\xff")
        assert task_of(path)[0] == "translation"


def test_a_pipe_is_not_read_for_its_form_and_the_fix_is_named(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"a b\tc d\n")
    os.mkfifo(tmp_path / "pipe")
    for path in (f"/dev/fd/{reader}", tmp_path / "pipe", os.devnull):
        with pytest.raises(DataError, match="it is a pipe or a device") as caught:
            task_of(path)
        assert "write it into a file" in str(caught.value)
    assert os.read(reader, 99) == b"a b\tc d\n"
    os.close(reader)
    os.close(writer)
