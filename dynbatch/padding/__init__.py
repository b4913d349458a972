"""Measures the cost of padding: a model and its padded form on the same sentences."""

from dynbatch.padding.compare import compare_padding
from dynbatch.padding.comparison import Comparison
from dynbatch.padding.estimate import padded_peak
from dynbatch.padding.forms import Cause, Form
from dynbatch.padding.limited import WithinLimit
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.padded_model import PaddedModel, PaddingError, lengthened, pad_ids, pad_model
from dynbatch.padding.recurrent import last_states, recurrent
from dynbatch.padding.targets import IGNORED, ignored_after

__all__ = [
    "IGNORED",
    "Cause",
    "Comparison",
    "Form",
    "LanguageModel",
    "PaddedModel",
    "PaddingError",
    "Tagger",
    "WithinLimit",
    "compare_padding",
    "ignored_after",
    "last_states",
    "lengthened",
    "pad_ids",
    "pad_model",
    "padded_peak",
    "recurrent",
]
