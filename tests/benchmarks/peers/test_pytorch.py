"""The PyTorch peers compute one function, however they deal with lengths."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the peers are PyTorch's")

import torch

from benchmarks.lengths import Batch, Corpus
from benchmarks.measure import require_agreement
from benchmarks.networks import Seq2SeqSizes, TaggerSizes, TreeSizes, initial_values
from benchmarks.peers.pytorch import kernels
from benchmarks.peers.pytorch_seq2seq import Seq2SeqContender
from benchmarks.peers.pytorch_tagger import PackedTagger, PaddedTagger
from benchmarks.peers.pytorch_tree import LevelTree, NodeTree
from benchmarks.trees import TreeBatch, TreeCorpus

TAGGER = TaggerSizes(vocabulary=30, embedding=6, hidden=5, tags=4)
SEQ2SEQ = Seq2SeqSizes(source_vocabulary=30, target_vocabulary=20, embedding=6, hidden=5)
TREE = TreeSizes(vocabulary=30, embedding=6, hidden=5, classes=3)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def values(sizes):
    return initial_values(sizes, np.random.default_rng(1))


def ragged(target_vocabulary, is_aligned):
    corpus = Corpus(30, target_vocabulary, is_aligned)
    return corpus.random_batches(np.random.default_rng(2), 1, 7)[0]


def equal_lengths(target_vocabulary):
    corpus = Corpus(30, target_vocabulary, is_aligned=True)
    return corpus.fill(np.random.default_rng(2), np.full((7, 2), 9))


def alone(contender, batch):
    """Mean loss of the sentences, each computed by itself."""
    pairs = zip(batch.sources, batch.targets, strict=True)
    return np.mean([contender.loss(contender.prepare(Batch([s], [t]))) for s, t in pairs])


def test_packed_tagger_treats_each_sentence_alone():
    tagger, batch = PackedTagger(TAGGER, values(TAGGER)), ragged(4, is_aligned=True)
    assert tagger.loss(tagger.prepare(batch)) == pytest.approx(alone(tagger, batch), rel=1e-5)


def test_padded_tagger_equals_the_packed_one_on_equal_lengths():
    contenders = [make(TAGGER, values(TAGGER)) for make in (PackedTagger, PaddedTagger)]
    require_agreement(contenders[0], contenders[1:], equal_lengths(4))


@pytest.mark.parametrize("selects", [False, True])
def test_packed_encoder_and_any_decoder_treat_each_sentence_alone(selects):
    batch = ragged(20, is_aligned=False)
    model = Seq2SeqContender("any", SEQ2SEQ, values(SEQ2SEQ), packs=True, selects=selects)
    assert model.loss(model.prepare(batch)) == pytest.approx(alone(model, batch), rel=1e-5)


def test_dropping_finished_rows_changes_neither_loss_nor_update():
    batch, initial = ragged(20, is_aligned=False), values(SEQ2SEQ)
    keeps = Seq2SeqContender("keeps", SEQ2SEQ, initial, packs=True)
    drops = Seq2SeqContender("drops", SEQ2SEQ, initial, packs=True, selects=True)
    require_agreement(keeps, [drops], batch)


def test_padded_encoder_equals_the_packed_one_on_equal_lengths():
    initial = values(SEQ2SEQ)
    forms = [Seq2SeqContender("any", SEQ2SEQ, initial, packs=packs) for packs in (True, False)]
    require_agreement(forms[0], forms[1:], equal_lengths(20))


def test_trees_by_levels_equal_trees_node_by_node():
    corpus, initial = TreeCorpus(30, 3), values(TREE)
    batch = corpus.fill(np.random.default_rng(2), np.array([[9, 9], [1, 1], [14, 14], [2, 2]]))
    nodes, by_level = NodeTree(TREE, initial), LevelTree(TREE, initial)
    each = [
        nodes.loss(nodes.prepare(TreeBatch([words], [classes], [tree])))
        for words, tree, classes in batch.sentences()
    ]
    assert by_level.loss(by_level.prepare(batch)) == pytest.approx(np.mean(each), rel=1e-5)
    require_agreement(nodes, [by_level], batch)


def test_only_padded_encoders_are_marked_inexact():
    initial = values(SEQ2SEQ)
    assert Seq2SeqContender("packed", SEQ2SEQ, initial, packs=True).is_exact
    assert not Seq2SeqContender("padded", SEQ2SEQ, initial).is_exact
    assert not PaddedTagger(TAGGER, values(TAGGER)).is_exact


def test_kernels_of_every_library_are_named():
    lines = kernels()
    assert lines[0].startswith("vectorised loops for ")
    if torch.backends.mkldnn.is_available():
        assert any(line.startswith("oneDNN for ") for line in lines)
        assert any(line.startswith("oneDNN's LSTM, implementation ") for line in lines)
    if torch.backends.mkl.is_available():
        assert any(line.startswith("oneMKL ") for line in lines)
