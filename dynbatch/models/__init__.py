"""Models: layers, recurrent and tree networks, attention, Transformers, CRF, seq2seq."""

from typing import TYPE_CHECKING, NoReturn

from dynbatch.models.attention import AdditiveAttention, Attention, DotAttention, GeneralAttention
from dynbatch.models.batch_norm import BatchNorm
from dynbatch.models.biaffine import BiaffineArcs, BiaffineLabels, BiaffineParser
from dynbatch.models.crf import CRF, SemiCRF
from dynbatch.models.ctc import ctc_beam_search, ctc_greedy
from dynbatch.models.freezing import freeze, unfreeze
from dynbatch.models.gpt import GPT
from dynbatch.models.images import AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, Flatten, MaxPool2d
from dynbatch.models.layers import Dropout, Embedding, EmbeddingBag, LayerNorm, Linear, RMSNorm
from dynbatch.models.lora.adapting import (
    add_adapter,
    merge_adapter,
    remove_adapter,
    unmerge_adapter,
)
from dynbatch.models.lora.config import LoraConfig
from dynbatch.models.lora.targets import adaptable
from dynbatch.models.matrix_state import CausalConv1d, GatedDeltaNet, Mamba2
from dynbatch.models.module import Module
from dynbatch.models.rnn import GRU, LSTM
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.models.sequential import Sequential
from dynbatch.models.spanning_tree import maximum_spanning_tree
from dynbatch.models.text_cnn import TextCNN
from dynbatch.models.transformer.attention import MultiHeadAttention
from dynbatch.models.transformer.feed_forward import FeedForward
from dynbatch.models.transformer.layers import TransformerDecoderLayer, TransformerEncoderLayer
from dynbatch.models.transformer.stacks import Transformer, TransformerDecoder, TransformerEncoder
from dynbatch.models.transformer_translation import TransformerTranslation
from dynbatch.models.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM
from dynbatch.nodes.syntax.other_names import OF_MODELS, missing

__all__ = [
    "CRF",
    "GPT",
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "Attention",
    "AvgPool2d",
    "BatchNorm",
    "BiaffineArcs",
    "BiaffineLabels",
    "BiaffineParser",
    "BinaryTreeLSTM",
    "CausalConv1d",
    "ChildSumTreeLSTM",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "DotAttention",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "FeedForward",
    "Flatten",
    "GatedDeltaNet",
    "GeneralAttention",
    "LayerNorm",
    "Linear",
    "LoraConfig",
    "Mamba2",
    "MaxPool2d",
    "Module",
    "MultiHeadAttention",
    "RMSNorm",
    "SemiCRF",
    "Seq2Seq",
    "Sequential",
    "TextCNN",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerTranslation",
    "adaptable",
    "add_adapter",
    "ctc_beam_search",
    "ctc_greedy",
    "freeze",
    "maximum_spanning_tree",
    "merge_adapter",
    "remove_adapter",
    "unfreeze",
    "unmerge_adapter",
]

if not TYPE_CHECKING:  # for which a module with this function has every name

    def __getattr__(name: str) -> NoReturn:
        """Raise an error for a name of PyTorch's; the message says what to write."""
        raise missing(name, "models", "dynbatch.models", OF_MODELS)
