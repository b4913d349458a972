"""Training: mini-batches, the loop, checkpoints."""

from dynbatch.train.batching import SentenceBatches, TokenBatches, padded_tokens, padding_ratio
from dynbatch.train.checkpoint import (
    CheckpointInfo,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from dynbatch.train.digest import data_digest
from dynbatch.train.lock import locked
from dynbatch.train.metrics import read_metrics
from dynbatch.train.prepared import PreparedBatches
from dynbatch.train.result import TrainingResult
from dynbatch.train.trainer import Trainer

__all__ = [
    "CheckpointInfo",
    "PreparedBatches",
    "SentenceBatches",
    "TokenBatches",
    "Trainer",
    "TrainingResult",
    "data_digest",
    "load_checkpoint",
    "locked",
    "padded_tokens",
    "padding_ratio",
    "read_checkpoint",
    "read_metrics",
    "save_checkpoint",
]
