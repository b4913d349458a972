"""Pretrained models: checkpoint folders that Hugging Face's `transformers` reads too."""

from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.model import PretrainedModel

__all__ = ["ModelConfig", "PretrainedModel"]
