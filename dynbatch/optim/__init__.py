"""Optimizers, clipping and learning-rate schedules, with PyTorch's names and semantics."""

from typing import TYPE_CHECKING, NoReturn

from dynbatch.nodes.syntax.other_names import OF_OPTIM, missing
from dynbatch.optim.adadelta import Adadelta
from dynbatch.optim.adagrad import Adagrad
from dynbatch.optim.adam import Adam, AdamW, SparseAdam
from dynbatch.optim.adamax import Adamax
from dynbatch.optim.asgd import ASGD
from dynbatch.optim.averaging import Average
from dynbatch.optim.clipping import clip_grad_norm_, clip_grad_value_
from dynbatch.optim.exponentiated_gradient import EG
from dynbatch.optim.groups import decay_groups
from dynbatch.optim.lion import Lion
from dynbatch.optim.nadam import NAdam
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.optimizer import Optimizer
from dynbatch.optim.radam import RAdam
from dynbatch.optim.rmsprop import RMSprop
from dynbatch.optim.rprop import Rprop
from dynbatch.optim.schedules import Constant, Cosine, InverseSqrt, LinearWarmup, Plateau, Schedule
from dynbatch.optim.sgd import SGD

__all__ = [
    "ASGD",
    "EG",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Average",
    "Constant",
    "Cosine",
    "GradientNorm",
    "InverseSqrt",
    "LinearWarmup",
    "Lion",
    "NAdam",
    "Optimizer",
    "Plateau",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Schedule",
    "SparseAdam",
    "clip_grad_norm_",
    "clip_grad_value_",
    "decay_groups",
]

if not TYPE_CHECKING:  # for which a module with this function has every name

    def __getattr__(name: str) -> NoReturn:
        """Raise an error for a name of PyTorch's; the message says what to write."""
        raise missing(name, "optim", "dynbatch.optim", OF_OPTIM)
