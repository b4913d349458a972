"""The command on a BERT small enough for a test; its real sizes are estimated, which is quick."""

import json

import numpy as np
import pytest

import dynbatch as db
from benchmarks.bert import __main__ as command
from benchmarks.bert import estimates, measured, report
from benchmarks.bert.examples import examples, full, mixed
from benchmarks.bert.report import FULL, MIXED, PADDED, PUBLISHED, draw
from dynbatch.models.pretrained.bert import BertConfig
from dynbatch.models.pretrained.bert_heads import BertForMaskedWords

SMALL = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(command, "BertConfig", lambda **sizes: BertConfig(**SMALL | sizes))
    monkeypatch.setattr(command, "TABLE_LENGTHS", (32,))
    return BertForMaskedWords(BertConfig(**SMALL), rng=1)


@pytest.mark.exhaustive
def test_bert_base_on_32_full_sentences_needs_less_than_ten_and_a_half_gib():
    model = BertForMaskedWords(BertConfig(), rng=1)
    found = estimates.estimate(model, full(32, 512))
    assert found.tokens == 32 * 512
    assert 4 * 4 * 109e6 < found.state < 4 * 4 * 110e6
    assert found.gib <= 10.5


def test_a_layer_keeps_fourteen_matrices_of_a_sentence():
    """Its input, 3 for attention and its result, a norm, 4 before gelu and 4 behind it."""
    arenas = []
    for layers in (2, 3):
        model = BertForMaskedWords(BertConfig(**SMALL | {"num_hidden_layers": layers}), rng=1)
        arenas.append(estimates.estimate(model, full(4, 64)).arena)
    tokens, floats = 4 * 64, 4
    norms, heads = 2, 2  # a number a token for each
    each = tokens * floats * (14 * SMALL["hidden_size"] + norms + heads)
    assert arenas[1] - arenas[0] == pytest.approx(each, rel=0.01)


def test_what_is_estimated_is_what_the_step_takes():
    lengths = mixed(6, 32)
    found = measured.in_a_process(SMALL, lengths, threads=1)  # others' peaks are not in it
    assert found["arena_bytes"] == found["estimated_arena_bytes"] > 0
    assert found["tokens"] == sum(lengths) and found["process_bytes"] > 0
    assert found["loss"] == pytest.approx(np.log(50), rel=0.2)


def test_padding_makes_full_sentences_of_all(small):
    lengths = [32, 5, 20]
    padded, whole = [estimates.estimate(small, x, True) for x in (lengths, [32] * 3)]
    assert padded.total == pytest.approx(whole.total, rel=0.05)
    assert estimates.estimate(small, lengths).arena < 0.75 * padded.arena
    assert padded.tokens == sum(lengths)


def test_as_many_sentences_as_fit():
    def line(count):
        return 100 + 7 * count

    def steps(count):
        return 100 + 7 * count + 40 * (count > 3) + 30 * (count > 17)

    for total in (line, steps):
        for limit in range(107, 400, 13):
            found = estimates.most_sentences(total, limit)
            assert total(found) <= limit < total(found + 1)
    assert estimates.most_sentences(line, 106) == 0


def test_examples_predict_a_seventh_of_the_words():
    config = BertConfig(**SMALL)
    for ids, targets in examples([20, 1, 60], config):
        chosen = targets >= 0
        assert chosen.sum() == max(1, round(0.15 * len(ids)))
        assert (targets[chosen] == ids[chosen]).all()
    assert mixed(200, 512)[0] == 512 and max(mixed(200, 512)) <= 512


def test_the_command_prints_both_steps_and_what_fits(small, capsys, monkeypatch):
    monkeypatch.setattr(
        measured, "in_a_process", lambda sizes, lengths, threads: measured.step(
            BertConfig(**SMALL | sizes), lengths, threads)
    )  # fmt: skip
    options = ["--sentences", "3", "--length", "32", "--limit-gib", "0.0004", "--json", "--run"]
    assert command.main([*options, "--threads", "1", "--no-pytorch"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert set(found["steps"]) == set(found["ran"]) == {"all full", "lengths as SQuAD's"}
    assert "as estimated; the process grew by" in printed.err
    assert list(found["fits"]) == [FULL, MIXED, PADDED, PUBLISHED]
    assert found["fits"][MIXED]["32"] > found["fits"][FULL]["32"] > 0


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need it")
    path = tmp_path / "bert.png"
    draw({FULL: {64: 100, 512: 12}, PUBLISHED: {64: 64, 512: 6}}, 11.0, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_forms_that_fit_alike_are_one_line_with_both_names(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures need it")
    figures = []
    new_figure = report.new_figure
    monkeypatch.setattr(
        report, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1]
    )
    draw({FULL: {64: 291}, MIXED: {64: 955}, PADDED: {64: 291}}, 11.0, tmp_path / "bert.png")
    (axes,) = figures[0].axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"{FULL}\n= {PADDED}", MIXED]
    assert [text.get_text() for text in axes.texts] == ["291", "955"]


def test_bytes_of_pytorch_lie_on_a_line():
    pytest.importorskip("torch", reason="the twin is PyTorch's")
    from benchmarks.bert.torch_twin import TorchBert, TorchMemory, activation_bytes

    memory, network = [make(BertConfig(**SMALL)) for make in (TorchMemory, TorchBert)]
    state = memory.total(32, 8) - activation_bytes(network, 8, 32)
    for sentences, length in ((16, 32), (4, 64), (7, 50)):
        expected = state + activation_bytes(network, sentences, length)
        assert memory.total(length, sentences) == pytest.approx(expected, rel=1e-3)
    assert state == 16 * sum(p.numel() for p in network.parameters())


def test_the_twin_in_pytorch_computes_the_same_loss():
    torch = pytest.importorskip("torch", reason="the twin is PyTorch's")
    from benchmarks.bert.torch_twin import TorchBert

    config = BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours, twin = BertForMaskedWords(config, rng=1), TorchBert(config)
    twin.take_values(ours)
    batch = examples([12, 12], config)
    with db.Graph() as graph:
        expected = float(estimates.mean_loss(ours, graph, batch).value)
    ids = torch.tensor(np.stack([ids for ids, _ in batch]))
    places = torch.tensor(np.flatnonzero(np.concatenate([targets for _, targets in batch]) >= 0))
    assert twin.loss(ids, places).item() == pytest.approx(expected, rel=1e-5)
