"""Tokenizers and vocabularies; other libraries' tokenizers by the extra `text`. Files: tagged
sentences, labelled texts, trees, word vectors.
"""

from dynbatch.text.adapters import HuggingFaceTokenizer, SentencePieceTokenizer
from dynbatch.text.brackets import LabelledTree, read_trees
from dynbatch.text.conllu import ParsedSentence, read_conllu
from dynbatch.text.folder import copy_tokenizer, load_tokenizer
from dynbatch.text.labelled import LabelledText, read_labelled
from dynbatch.text.tagged import TaggedSentence, read_tagged
from dynbatch.text.units import ByteTokenizer, CharacterTokenizer
from dynbatch.text.vectors import PretrainedVectors, read_vectors
from dynbatch.text.vocabulary import Vocabulary
from dynbatch.text.wordpiece import WordPiece

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "HuggingFaceTokenizer",
    "LabelledText",
    "LabelledTree",
    "ParsedSentence",
    "PretrainedVectors",
    "SentencePieceTokenizer",
    "TaggedSentence",
    "Vocabulary",
    "WordPiece",
    "copy_tokenizer",
    "load_tokenizer",
    "read_conllu",
    "read_labelled",
    "read_tagged",
    "read_trees",
    "read_vectors",
]
