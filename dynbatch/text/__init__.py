"""Tokenizers: characters, bytes and WordPiece; other libraries' by the extra `text`."""

from dynbatch.text.adapters import HuggingFaceTokenizer, SentencePieceTokenizer
from dynbatch.text.units import ByteTokenizer, CharacterTokenizer
from dynbatch.text.wordpiece import WordPiece

__all__ = [
    "ByteTokenizer",
    "CharacterTokenizer",
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "WordPiece",
]
