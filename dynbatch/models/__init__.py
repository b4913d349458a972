"""Models: layers, recurrent and tree networks, attention, CRF, seq2seq."""

from dynbatch.models.attention import AdditiveAttention, Attention, DotAttention, GeneralAttention
from dynbatch.models.beam import Hypothesis
from dynbatch.models.biaffine import BiaffineArcs, BiaffineLabels, BiaffineParser
from dynbatch.models.crf import CRF
from dynbatch.models.layers import Dropout, Embedding, LayerNorm, Linear
from dynbatch.models.module import Module
from dynbatch.models.rnn import GRU, LSTM
from dynbatch.models.search import beam_search, greedy_search
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.models.spanning_tree import maximum_spanning_tree
from dynbatch.models.text_cnn import TextCNN
from dynbatch.models.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM

__all__ = [
    "CRF",
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "Attention",
    "BiaffineArcs",
    "BiaffineLabels",
    "BiaffineParser",
    "BinaryTreeLSTM",
    "ChildSumTreeLSTM",
    "DotAttention",
    "Dropout",
    "Embedding",
    "GeneralAttention",
    "Hypothesis",
    "LayerNorm",
    "Linear",
    "Module",
    "Seq2Seq",
    "TextCNN",
    "beam_search",
    "greedy_search",
    "maximum_spanning_tree",
]
