"""`dynbatch convert SOURCE TARGET`: checkpoints of Hugging Face and PyTorch to ours, and back."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from dynbatch.commands import state_dicts
from dynbatch.commands.arguments import add_base
from dynbatch.errors import CheckpointError, DataError
from dynbatch.models.lora.adapting import adapters_of, merge_adapter
from dynbatch.models.pretrained import load_pretrained
from dynbatch.models.pretrained.folder import CONFIG, INDEX, WEIGHTS, weight_files
from dynbatch.models.pretrained.match import Match
from dynbatch.models.pretrained.tensors import tensors_of
from dynbatch.models.pretrained.writing import DTYPES
from dynbatch.tasks.document_tuning import DocumentTuning
from dynbatch.tasks.documents import PublishedTokenizer
from dynbatch.tasks.registry import load_task
from dynbatch.text import copy_tokenizer
from dynbatch.text.folder import load_tokenizer
from dynbatch.train.checkpoint import MODEL, OPTIMIZER, read_checkpoint, save_checkpoint
from dynbatch.train.progress import COLUMNS
from dynbatch.train.run_folder import BEST, model_file

SUMMARY = "turn checkpoints of Hugging Face and PyTorch into ours, and back"
HELP = """\
Turn a checkpoint into another program's. What it becomes shows in the names of
SOURCE and TARGET. Nothing in a file is executed.

  dynbatch convert gpt2/ runs/gpt2/
  dynbatch convert runs/fine-tuned/ fine-tuned-for-transformers/
  dynbatch convert gpt2/pytorch_model.bin gpt2/model.safetensors
"""
MORE = """\
from and to:
  SOURCE                            TARGET
  a folder of Hugging Face          folder/ or run.safetensors, of dynbatch
  a run's folder, or its file       folder/ for Hugging Face's transformers
  weights.pt, .pth, .bin            weights.safetensors, under the same names
  weights.safetensors, or a run's   weights.pt, .pth, .bin

  A folder of Hugging Face has config.json and model.safetensors, whole or in
  parts; its family is BERT, GPT-2, Llama, T5, Marian, their kin, or Mamba-2.
  The tokenizer of a folder goes along, and LoRA's matrices are merged into the
  weights. PyTorch's formats need PyTorch (pip install torch), and are read as
  tensors alone. Parts of a large model are read by their index, such as
  pytorch_model.bin.index.json.

values:
  They stay what they are, to the bit. In a checkpoint of dynbatch they are
  float32, which holds all of float16 and bfloat16; float64 is rounded. --dtype
  rounds those of a folder.

in Python:
  dynbatch.models.pretrained.load_pretrained(path) gives the model, from the
  folder or from ours.

exit status:
  0; 1 after an error, when nothing was written; 2 after a wrong option. A file
  that is there already is only replaced with --overwrite.
"""

_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a folder or a file, see below")
    add("target", metavar="TARGET", help="the folder or file to write")
    add("--overwrite", action="store_true", help="replace what is there")
    add("--dtype", choices=list(DTYPES), default="float32", help="of the values in a folder for "
        "transformers (%(default)s)")  # fmt: skip
    add_base(add)
    add("--key", metavar="NAME", help="the state dict's entry of a .pt file that has several")


def run(options: argparse.Namespace) -> None:
    """Convert, and say what was.

    Raises:
        DynbatchError, ImportError, OSError: as their messages say; nothing was written.
    """
    source, target = _source_of(Path(options.source)), Path(options.target)
    if state_dicts.is_pytorch(source) or state_dicts.is_pytorch(target):
        _convert_state_dict(source, target, options)
    elif source.is_dir():
        _import(source, target, options.overwrite)
    else:
        _export(source, target, options)


def _import(source: Path, target: Path, overwrite: bool) -> None:
    """Hugging Face's folder to a checkpoint of dynbatch."""
    is_folder = target.suffix != ".safetensors"
    if is_folder and any([(target / name).exists() for name in (CONFIG, BEST)]):
        raise DataError(
            f"{target}: is a folder of Hugging Face, or of a training run, whose weights have the "
            "same name.\n  fix:  give another folder, or the name of a .safetensors file"
        )
    file = target / WEIGHTS if is_folder else target
    _require_free(overwrite, file)
    model = load_pretrained(source)
    match = Match(model, *weight_files(source))
    save_checkpoint(file, model)
    copied = copy_tokenizer(source, target) if is_folder else []
    print(f"{source}: Hugging Face's {model.architecture}, {match.num_tensors:,} tensors")
    print(f"{file}: a checkpoint of dynbatch, {type(model).__name__}")
    parameters = model.named_parameters()
    _list({name: (one.shape, str(one.value.dtype)) for name, one in parameters})
    _tell("left out", match.left_out)
    _tell("copied", copied)


def _export(source: Path, target: Path, options: argparse.Namespace) -> None:
    """A checkpoint of dynbatch to a folder of Hugging Face."""
    if target.suffix == ".safetensors":
        raise DataError(
            f"{source} to {target}: there is nothing to convert.\n"
            "  rule: a checkpoint of dynbatch becomes a folder for transformers, or weights.pt\n"
            "  fix:  give TARGET without .safetensors, or with .pt"
        )
    file = target / WEIGHTS
    if (target / BEST).exists() or (file.exists() and state_dicts.is_checkpoint(file)):
        raise DataError(
            f"{target}: holds a run of dynbatch, whose file has the name of Hugging Face's.\n"
            "  fix:  give another folder"
        )
    _require_free(options.overwrite, target / CONFIG, file)
    is_tuned = read_checkpoint(source).extra.get("task") == DocumentTuning.name
    tuned = load_task(source, options.from_) if is_tuned or options.from_ else None
    model = load_pretrained(source) if tuned is None else tuned.model
    if adapters_of(model):
        merge_adapter(model)
        print(f"{source}: its adapter is merged into the weights")
    model.save_pretrained(target, dtype=options.dtype)
    copied = copy_tokenizer(source.parent, target)
    print(f"{source}: a checkpoint of dynbatch, {type(model).__name__}")
    print(f"{target}: Hugging Face's {model.architecture}")
    _list({name: (one.shape, options.dtype) for name, one in tensors_of(file)})
    left_out = [name for name, _ in tensors_of(source) if not name.startswith(MODEL)]
    _tell("left out", left_out)
    _tell("copied", copied)
    if isinstance(tuned, DocumentTuning):
        _tell_of_marks(tuned.tokenizer, target)


def _tell_of_marks(coder: PublishedTokenizer, folder: Path) -> None:
    """Say how a run's prompts begin, if the tokenizer in its folder does not begin them so."""
    begun, whole = [coder.encode("a").tolist(), load_tokenizer(folder).encode("a").tolist()]
    if begun != whole:
        print(
            fill(
                f"prompts: the run begins each with the id {coder.begin}, so that 'a' is {begun}; "
                f"the tokenizer of {folder} makes {whole} of it. Give programs the run's ids: "
                f"dynbatch generate {folder} --tokenizer ids {' '.join(map(str, begun))!r}",
                COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
            )
        )  # fmt: skip


def _convert_state_dict(source: Path, target: Path, options: argparse.Namespace) -> None:
    """PyTorch's state dict to safetensors, or back, under the same names."""
    if source.is_dir():
        source = source / (WEIGHTS if (source / WEIGHTS).exists() else INDEX)
    of_pytorch = [state_dicts.is_pytorch(path) for path in (source, target)]
    if all(of_pytorch) or target.suffix not in (*state_dicts.SUFFIXES, ".safetensors"):
        raise DataError(
            f"{source} to {target}: only one of them may be PyTorch's, the other is safetensors.\n"
            f"  fix:  give {source.name.partition('.')[0]}.safetensors as TARGET"
        )
    _require_free(options.overwrite, target)
    tensors, left_out = state_dicts.read(source, options.key)
    state_dicts.write(tensors, target)
    print(f"{source}: {len(tensors):,} tensors\n{target}: the same, under these names")
    _list(state_dicts.shapes_of(tensors))
    _tell("left out", left_out)


def _source_of(source: Path) -> Path:
    """A folder of Hugging Face, or a file: of a run's folder its best, or else its last.

    Raises:
        CheckpointError: there is none.
    """
    if source.is_file() or (source / CONFIG).exists():
        return source
    if model_file(source).is_file():
        return model_file(source)
    if source.exists():
        raise CheckpointError(
            f"{source}: neither {CONFIG} nor {WEIGHTS} is there.\n"
            "  rule: a folder of Hugging Face has both, a run's folder the second"
        )
    raise CheckpointError(f"{source}: there is no such file or folder.")


def _require_free(overwrite: bool, *files: Path) -> None:
    """Refuse to replace files unasked.

    Raises:
        DataError: one is there, or is a folder.
    """
    for path in files:
        if path.is_dir():
            raise DataError(f"{path}: is a folder.\n  fix:  give the name of a file in it")
        if path.exists() and not overwrite:
            raise DataError(
                f"{path}: is there already; nothing was written.\n"
                "  fix:  give another name, or --overwrite"
            )


def _list(tensors: Mapping[str, tuple[Sequence[int], str]]) -> None:
    """Print names, shapes and dtypes; one line for those that differ in a number alone."""
    rows = Counter(
        [
            (_NUMBER.sub("*", name), "×".join(map(str, shape)), dtype)
            for name, (shape, dtype) in tensors.items()
        ]
    )
    cells = [
        (f"{count} ×" if count > 1 else "", shape or "number", dtype, name)
        for (name, shape, dtype), count in rows.items()
    ]
    times, shapes, dtypes = [max([len(row[k]) for row in cells], default=0) for k in range(3)]
    for count, shape, dtype, name in cells:
        line = f"  {count:>{times}} {shape:<{shapes}}  {dtype:<{dtypes}}"
        apart = "  " if len(line) + 2 + len(name) <= COLUMNS else "\n       "
        print(f"{line}{apart}{name}")


def _tell(what: str, names: Sequence[str]) -> None:
    """Print names, those that differ in a number once, and an optimizer's state as a whole."""
    state = sum([name.startswith(OPTIMIZER) for name in names])
    if state:
        print(f"{what}: the optimizer's state, {state} tensors")
    names = [name for name in names if not name.startswith(OPTIMIZER)]
    if names:
        counts = Counter([_NUMBER.sub("*", name) for name in names])
        listed = [f"{name} × {n}" if n > 1 else name for name, n in counts.items()]
        print(fill(f"{what}: {', '.join(listed)}", COLUMNS, subsequent_indent="  "))
