"""Relations in dependency trees: what the model reads, and the baseline."""

from dynbatch.text import ParsedSentence, Vocabulary
from examples.trees import relations
from examples.trees.relations import by_word, labelled_tree

SENTENCE = ParsedSentence(
    ("Em", "a", "bacia", "."),
    ("ADP", "DET", "NOUN", "PUNCT"),
    (3, 3, 0, 3),
    ("case", "det", "root", "punct"),
)


def one_word(word, label):
    return ParsedSentence((word,), ("X",), (0,), (label,))


def test_a_tree_counts_from_0_and_says_on_which_side_heads_are():
    words, labels = Vocabulary(["a", "em"]), Vocabulary(["case", "det", "root"])
    tree = labelled_tree(SENTENCE, words, labels)
    assert tree.heads.tolist() == [2, 2, -1, 2] and tree.num_nodes == 4
    assert tree.features.tolist() == [[4, 3, 2, 2], [2, 2, 0, 1]]
    assert labels.decode(tree.labels[:3]) == ["case", "det", "root"]
    assert tree.labels[3] == labels.unknown  # never predicted, so never right


def test_the_baseline_is_the_usual_label_of_a_word():
    train = [
        one_word("a", "det"),
        one_word("A", "det"),
        one_word("a", "case"),
        one_word("b", "obj"),
    ]
    assert by_word(train, [one_word("a", "det"), one_word("a", "case")]) == 0.5
    assert by_word(train, [one_word("new", "det"), one_word("b", "obj")]) == 1.0


def test_the_example_trains_and_reports(capsys, monkeypatch):
    monkeypatch.setattr("examples.corpora.petrogold.load", lambda split: [SENTENCE] * 4)
    arguments = ["--epochs", "20", "--batch-size", "2", "--lr", "0.05", "--dropout", "0", "--quiet"]
    assert relations.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Tree-LSTM: 100.00% right" in printed
    assert "each word's most frequent label: 100.00% right" in printed


def test_missing_data_is_an_error_with_its_fix(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert relations.main([]) == 1
    assert "pip install" in capsys.readouterr().err
