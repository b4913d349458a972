"""What padding costs: the padded twin of a model, and both measured on the same sentences."""

from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.recurrent import last_states, recurrent
from dynbatch.padding.twin import IGNORED, PaddingError, Twin, lengthened, pad_ids, twin_of

__all__ = [
    "IGNORED",
    "LanguageModel",
    "PaddingError",
    "Tagger",
    "Twin",
    "last_states",
    "lengthened",
    "pad_ids",
    "recurrent",
    "twin_of",
]
