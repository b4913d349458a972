"""Optimizers, clipping and learning-rate schedules, with PyTorch's names and semantics."""

from dynbatch.optim.adagrad import Adagrad
from dynbatch.optim.adam import Adam, AdamW
from dynbatch.optim.averaging import Average
from dynbatch.optim.clipping import clip_grad_norm_, clip_grad_value_
from dynbatch.optim.groups import decay_groups
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.optimizer import Optimizer
from dynbatch.optim.rmsprop import RMSprop
from dynbatch.optim.schedules import Constant, Cosine, InverseSqrt, LinearWarmup, Plateau, Schedule
from dynbatch.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Average",
    "Constant",
    "Cosine",
    "GradientNorm",
    "InverseSqrt",
    "LinearWarmup",
    "Optimizer",
    "Plateau",
    "RMSprop",
    "Schedule",
    "clip_grad_norm_",
    "clip_grad_value_",
    "decay_groups",
]
