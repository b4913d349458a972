import json

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
    assert list(rates) == ["dynbatch", "pytorch-padded", "pytorch-sorted"]
    assert min(rates.values()) > 0 and found["weights"] == "random"


def test_other_vectors_end_the_command(small, monkeypatch):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    right = minilm.of_dynbatch
    monkeypatch.setattr(
        minilm, "of_pytorch", lambda bert, batch, threads, sorts: (
            lambda sentences: 1.01 * right(bert, batch)(sentences))
    )  # fmt: skip
    with pytest.raises(SystemExit, match="pytorch-padded and dynbatch give other vectors"):
        minilm.main(QUICK)
