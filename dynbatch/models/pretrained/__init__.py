"""Pretrained models: checkpoint folders that Hugging Face's `transformers` reads too."""

from dynbatch.models.pretrained.adapters import load_adapter, save_adapter
from dynbatch.models.pretrained.bart import Bart, BartConfig, MBart, MBartConfig
from dynbatch.models.pretrained.bert import Bert, BertConfig
from dynbatch.models.pretrained.bert_heads import (
    BertForClassification,
    BertForMaskedWords,
    BertForTokens,
)
from dynbatch.models.pretrained.checkpoints import load_pretrained
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.distilbert import (
    DistilBert,
    DistilBertConfig,
    DistilBertForClassification,
    DistilBertForMaskedWords,
    DistilBertForTokens,
)
from dynbatch.models.pretrained.gemma import Gemma2, Gemma2Config, Gemma3, Gemma3Config
from dynbatch.models.pretrained.gpt2 import GPT2, GPT2Config
from dynbatch.models.pretrained.llama import Llama, LlamaConfig
from dynbatch.models.pretrained.mamba import Mamba2Config, Mamba2LanguageModel
from dynbatch.models.pretrained.marian import Marian, MarianConfig
from dynbatch.models.pretrained.mistral import Mistral, MistralConfig
from dynbatch.models.pretrained.model import PretrainedModel
from dynbatch.models.pretrained.modernbert import (
    ModernBert,
    ModernBertConfig,
    ModernBertForMaskedWords,
)
from dynbatch.models.pretrained.mpnet import (
    MPNet,
    MPNetConfig,
    MPNetForClassification,
    MPNetForMaskedWords,
    MPNetForTokens,
)
from dynbatch.models.pretrained.qwen import Qwen2, Qwen2Config, Qwen3, Qwen3Config
from dynbatch.models.pretrained.qwen_next import Qwen3Next, Qwen3NextConfig
from dynbatch.models.pretrained.roberta import (
    Roberta,
    RobertaConfig,
    RobertaForClassification,
    RobertaForMaskedWords,
    RobertaForTokens,
)
from dynbatch.models.pretrained.t5 import T5, T5Config

__all__ = [
    "GPT2",
    "T5",
    "Bart",
    "BartConfig",
    "Bert",
    "BertConfig",
    "BertForClassification",
    "BertForMaskedWords",
    "BertForTokens",
    "DistilBert",
    "DistilBertConfig",
    "DistilBertForClassification",
    "DistilBertForMaskedWords",
    "DistilBertForTokens",
    "GPT2Config",
    "Gemma2",
    "Gemma2Config",
    "Gemma3",
    "Gemma3Config",
    "Llama",
    "LlamaConfig",
    "MBart",
    "MBartConfig",
    "MPNet",
    "MPNetConfig",
    "MPNetForClassification",
    "MPNetForMaskedWords",
    "MPNetForTokens",
    "Mamba2Config",
    "Mamba2LanguageModel",
    "Marian",
    "MarianConfig",
    "Mistral",
    "MistralConfig",
    "ModelConfig",
    "ModernBert",
    "ModernBertConfig",
    "ModernBertForMaskedWords",
    "PretrainedModel",
    "Qwen2",
    "Qwen2Config",
    "Qwen3",
    "Qwen3Config",
    "Qwen3Next",
    "Qwen3NextConfig",
    "Roberta",
    "RobertaConfig",
    "RobertaForClassification",
    "RobertaForMaskedWords",
    "RobertaForTokens",
    "T5Config",
    "load_adapter",
    "load_pretrained",
    "save_adapter",
]
