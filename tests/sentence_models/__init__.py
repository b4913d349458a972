"""Models of one sentence of every kind, whose bits must not depend on the sentences beside it."""

from tests.sentence_models import layers, recurrent, structures, transformers
from tests.sentence_models.sentence import KINDS, WORDS, Build, Sentence

__all__ = [
    "KINDS", "WORDS", "Build", "Sentence", "layers", "recurrent", "structures", "transformers",
]  # fmt: skip
