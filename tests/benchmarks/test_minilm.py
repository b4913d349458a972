import json

import numpy as np
import pytest

from benchmarks import minilm

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "hidden_dropout_prob": 0.0,
}  # fmt: skip
QUICK = ["--sentences", "9", "--batch", "4", "--rounds", "1", "--threads", "1", "--json"]

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(minilm, "SIZES", SMALL)


def test_all_sides_give_the_same_vectors_and_are_timed(small, capsys):
    torch = pytest.importorskip("torch", reason="the peers are PyTorch's")
    threads = torch.get_num_threads()
    try:
        assert minilm.main(QUICK) == 0
    finally:
        torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    rates = found["sentences_per_second"]
    assert list(rates)[:3] == ["dynbatch", "pytorch-padded", "pytorch-sorted"]
    assert min(rates.values()) > 0 and found["weights"] == "random"


def test_padded_sentences_come_back_in_their_order():
    sentences = [np.full(n, n) for n in (3, 1, 5, 2, 4)]
    asked = []

    def vectors_of(ids, is_word):
        asked.append(is_word.sum(1).tolist())
        return (ids * is_word).max(1, keepdims=True).astype(np.float32)

    for sorts in (False, True):
        encode = minilm.padded(vectors_of, 2, sorts)
        assert encode(sentences)[:, 0].tolist() == [3, 1, 5, 2, 4]
    assert asked == [[3, 1], [5, 2], [4], [5, 4], [3, 2], [1]]


def test_other_vectors_end_the_command(small, monkeypatch):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    right = minilm.of_pytorch
    monkeypatch.setattr(
        minilm, "of_pytorch", lambda bert, threads: (
            lambda ids, is_word: 1.01 * right(bert, threads)(ids, is_word))
    )  # fmt: skip
    with pytest.raises(SystemExit, match="pytorch-padded and dynbatch give other vectors"):
        minilm.main([*QUICK, "--peers", "pytorch"])
