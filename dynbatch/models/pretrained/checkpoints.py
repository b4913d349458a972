"""`load_pretrained`: the model of a family, out of Hugging Face's folder or out of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynbatch.arguments import state_differences
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.pretrained.adapters import add_saved_adapter
from dynbatch.models.pretrained.bart import Bart, MBart
from dynbatch.models.pretrained.bert import Bert
from dynbatch.models.pretrained.bert_heads import (
    BertForClassification,
    BertForMaskedWords,
    BertForTokens,
)
from dynbatch.models.pretrained.distilbert import (
    DistilBert,
    DistilBertForClassification,
    DistilBertForMaskedWords,
    DistilBertForTokens,
)
from dynbatch.models.pretrained.folder import CONFIG, fault, file_of, read_json, shorten
from dynbatch.models.pretrained.gemma import Gemma2, Gemma3
from dynbatch.models.pretrained.gpt2 import GPT2
from dynbatch.models.pretrained.llama import Llama
from dynbatch.models.pretrained.mamba import Mamba2LanguageModel
from dynbatch.models.pretrained.marian import Marian
from dynbatch.models.pretrained.mistral import Mistral
from dynbatch.models.pretrained.model import PretrainedModel, lies_short, precision_of
from dynbatch.models.pretrained.modernbert import ModernBert, ModernBertForMaskedWords
from dynbatch.models.pretrained.mpnet import (
    MPNet,
    MPNetForClassification,
    MPNetForMaskedWords,
    MPNetForTokens,
)
from dynbatch.models.pretrained.qwen import Qwen2, Qwen3
from dynbatch.models.pretrained.qwen_next import Qwen3Next
from dynbatch.models.pretrained.roberta import (
    Roberta,
    RobertaForClassification,
    RobertaForMaskedWords,
    RobertaForTokens,
)
from dynbatch.models.pretrained.t5 import T5
from dynbatch.train.checkpoint import MODEL
from dynbatch.train.checkpoint_file import CheckpointFile
from dynbatch.train.run_folder import model_file

_WITHOUT_HEAD: tuple[type[PretrainedModel], ...] = (
    Bert, Roberta, DistilBert, MPNet, ModernBert, GPT2, Llama, Mistral, Qwen2, Qwen3, Qwen3Next,
    Gemma2, Gemma3, Mamba2LanguageModel, T5, Marian, Bart, MBart,
)  # fmt: skip
_WITH_HEAD: tuple[type[PretrainedModel], ...] = (
    BertForMaskedWords, BertForClassification, BertForTokens,
    RobertaForMaskedWords, RobertaForClassification, RobertaForTokens,
    DistilBertForMaskedWords, DistilBertForClassification, DistilBertForTokens,
    MPNetForMaskedWords, MPNetForClassification, MPNetForTokens, ModernBertForMaskedWords,
)  # fmt: skip
_BY_TYPE = {kind: one for one in _WITHOUT_HEAD for kind in one.config_type.model_types}
_BY_ARCHITECTURE = {one.architecture: one for one in (*_WITHOUT_HEAD, *_WITH_HEAD)}


def load_pretrained(path: str | Path, *, dtype: Any = FULL) -> Any:
    """The model of a folder of Hugging Face, or a checkpoint of such a model, by what it says.

    The class is that of config.json's "architectures": `BertForClassification` for
    "BertForSequenceClassification". For an architecture that is not here it is the model_type's
    without a head. The model is in evaluation mode. Nothing is executed, and shapes are compared
    before anything is allocated.

    Args:
        path: a folder with config.json; or a file that `save_checkpoint` or `Trainer` wrote, or the
              folder of a run: then the model of its best validation, model.best.safetensors, else
              that of its end, model.safetensors.
        dtype: "float32", or "bfloat16" for weights in 16 bits, which are read and not trained: see
               `PretrainedModel.from_pretrained`.

    Returns:
        A `PretrainedModel`. Its type is Any, as only the file tells its class.

    Raises:
        CheckpointError: it is neither, or damaged, or of another family.
        ArgumentError:   another dtype.

    Example:
        >>> import tempfile
        >>> from dynbatch.models.pretrained import GPT2, GPT2Config, load_pretrained
        >>> folder = tempfile.mkdtemp()
        >>> GPT2(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1)).save_pretrained(folder)
        >>> type(load_pretrained(folder)).__name__
        'GPT2'
    """
    path = Path(path)
    file = model_file(path)
    if (path / CONFIG).exists() or not (file.exists() or path.suffix == ".safetensors"):
        config = file_of(path, CONFIG)
        return _class_of(config, read_json(config)).from_pretrained(path, dtype=dtype)
    return _from_checkpoint(file, precision_of("load_pretrained", dtype))


def _class_of(path: Path, config: dict[str, Any]) -> type[PretrainedModel]:
    """The class for a config.json.

    Raises:
        CheckpointError: there is none.
    """
    kind, names = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or kind not in _BY_TYPE:
        raise fault(
            path, f"its model_type is {shorten(kind)}, which is not one of those known here",
            f"choose a model of {', '.join(sorted(_BY_TYPE))}",
        )  # fmt: skip
    name = names[0] if isinstance(names, list) and names else None
    family = _BY_ARCHITECTURE.get(str(name).removeprefix("XLM"), _BY_TYPE[kind])
    return family if kind in family.config_type.model_types else _BY_TYPE[kind]


def _from_checkpoint(path: Path, precision: str) -> PretrainedModel:
    """The model of a checkpoint whose `extra` has a family's config.json."""
    with CheckpointFile(path) as file:
        config = file.state["extra"].get(PretrainedModel.KEY)
        if not isinstance(config, dict):
            raise CheckpointError.at_caller(
                f"{path}: its model is not one of Hugging Face's families; nothing was loaded.\n"
                "  rule: a checkpoint of GPT2, Bert and the like says so by itself\n"
                f"  fix:  build your own model, and load_checkpoint({path.name!r}, model); or take "
                f"its tensors alone: dynbatch convert {path} weights.pt"
            )
        family = _class_of(path, config)
        model = family.with_shapes(family.config_type.checked(path, config), path, len(file.shapes))
        if isinstance(adapter := file.state["extra"].get(PretrainedModel.ADAPTER_KEY), dict):
            add_saved_adapter(model, path, adapter)
        if file.state["frozen"]:
            raise CheckpointError.at_caller(
                f"{path}: it has trained parameters alone; nothing was loaded.\n"
                "  rule: with save_frozen=False the others are those of the model it began with\n"
                "  fix:  load that model, add the adapter if it had one, and then "
                f"train.load_checkpoint({path.name!r}, model); of a run of dynbatch train, "
                f"dynbatch convert {path.parent} FOLDER writes the whole model"
            )
        parameters = dict(model.named_parameters())
        wanted = {name: parameter.shape for name, parameter in parameters.items()}
        if differences := state_differences(wanted, file.shapes_of(MODEL), "model"):
            raise CheckpointError.at_caller(
                f"{path}: its tensors are not those of its {family.__name__}; nothing was loaded.\n"
                f"{differences}\n  fix:  take another copy, or an earlier checkpoint of the run"
            )
        for name, value in file.each(MODEL, kinds="F"):
            parameter = parameters[name]
            parameter.replace(value)
            if lies_short(name, parameter, precision):
                parameter.shorten()
    return model.eval()
