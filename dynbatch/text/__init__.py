"""Tokenizers and vocabularies; other libraries' tokenizers by the extra `text`. Files: tagged
sentences, labelled texts, pairs, documents, lines, JSON lines, trees, word vectors. Error rates,
BLEU and chrF of what a model wrote.
"""

from dynbatch.text.adapters import HuggingFaceTokenizer, SentencePieceTokenizer
from dynbatch.text.brackets import LabelledTree, read_trees
from dynbatch.text.chat import ChatTemplate
from dynbatch.text.conllu import ParsedSentence, read_conllu
from dynbatch.text.documents import read_documents
from dynbatch.text.folder import copy_tokenizer, load_tokenizer
from dynbatch.text.json_lines import read_json_lines
from dynbatch.text.labelled import LabelledText, read_labelled
from dynbatch.text.lines import read_lines
from dynbatch.text.metrics import ErrorRates, edit_distance, error_rates, translation_scores
from dynbatch.text.pairs import ParallelText, read_pairs
from dynbatch.text.tagged import TaggedSentence, read_tagged
from dynbatch.text.units import ByteTokenizer, CharacterTokenizer
from dynbatch.text.vectors import PretrainedVectors, read_vectors
from dynbatch.text.vocabulary import Vocabulary
from dynbatch.text.wordpiece import WordPiece

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "ChatTemplate",
    "ErrorRates",
    "HuggingFaceTokenizer",
    "LabelledText",
    "LabelledTree",
    "ParallelText",
    "ParsedSentence",
    "PretrainedVectors",
    "SentencePieceTokenizer",
    "TaggedSentence",
    "Vocabulary",
    "WordPiece",
    "copy_tokenizer",
    "edit_distance",
    "error_rates",
    "load_tokenizer",
    "read_conllu",
    "read_documents",
    "read_json_lines",
    "read_labelled",
    "read_lines",
    "read_pairs",
    "read_tagged",
    "read_trees",
    "read_vectors",
    "translation_scores",
]
