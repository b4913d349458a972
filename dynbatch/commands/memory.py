"""`dynbatch memory DATA`: a model's memory on a file's sentences, padded and unpadded."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynbatch.backend import Array
from dynbatch.commands.arguments import function_of_the_user
from dynbatch.errors import DataError
from dynbatch.kernels.runtime.parallel import set_num_threads
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.memory.sizes import parse_bytes
from dynbatch.models.module import Module
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.padding.compare import BATCH_SIZES, compare_padding
from dynbatch.padding.data import Text, numbered, read
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.padded_model import Example, Loss, Pad, described
from dynbatch.padding.picture import require_format
from dynbatch.padding.pytorch_forms import TorchModel, torch_forms
from dynbatch.tasks.forms import refuse_pipe, task_of
from dynbatch.tasks.options import ROUNDING, device_name, positive, precision_of_values
from dynbatch.text import read_labelled, read_tagged

MODELS = ("seq2seq", "tagger", "language-model")

SUMMARY = "measure what a model holds with padding and without"
HELP = """\
Measure what a model holds in memory while it trains on your own sentences:
padded and unpadded, in shuffled order, with sentences of like length in a
batch, and in batches of so many tokens. All compute the same loss. It takes a
minute or two, nothing is saved.

  dynbatch memory pairs.tsv
  dynbatch memory sentences.txt --batch-size 128 --hidden 512
  dynbatch memory pairs.tsv --memory-limit 2GB
  dynbatch memory pairs.tsv --device cuda --plan
  dynbatch memory pairs.tsv --pytorch --picture memory.png
"""

MORE = """\
data:
  The forms of dynbatch train, in UTF-8; words are separated by spaces.
  one sentence on each line          a language model
  source<TAB>target on each line     seq2seq
  word<TAB>tag, or word/TAG          a tagger
  label<TAB>text, or JSON lines      a tagger of the texts, for their encoder

a model of your own:
  --model package.module:function, such as network:make for make in network.py
  of this folder. It is called with the number of ids of each column:
  make(words), or make(sources, targets). It returns (model, loss), where
  loss(graph, ids) gives the loss of a sentence, loss(graph, source, target) of
  a pair. A language model takes its targets from ids: ids[:-1] and ids[1:]. If
  attention or the like would read padding, it returns more: (model, loss, pad,
  padded_loss), as dynbatch.memory.compare_padding explains.

exit status:
  0; 1 after an error; 2 after a wrong option.
"""


READING = """\
how to read it
  padded, unpadded   each sentence as long as its batch's longest, or as it is
  random, bucketed   sentences as shuffled, or like lengths together
  (by) tokens        batches of so many tokens: padded, of like lengths, padding
                     included; unpadded, as shuffled
  peak               what must fit: the most bytes at once, in the largest batch
  cells              numbers for each one that is needed: 2.00 is half padding
  traced, pool       the same, as Python's tracer and the allocator count it
  in turn, alone     what a cause saves on top of those above it, or by itself
"""


@dataclass(frozen=True)
class Subject:
    """The model and data to measure: arguments of `compare_padding`."""

    model: Module
    loss: Loss
    examples: Sequence[Example]
    pad: Pad | None = None
    padded_loss: Loss | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="a text file, see below")
    add("--model", metavar="MODEL", help=f"{', '.join(MODELS)}, or one of your own, see below "
        "(seq2seq for lines with a tab, else language-model)")  # fmt: skip
    add("--characters", action="store_true", help="tokens are characters, not words")
    numbers = {
        "--embed": (256, "features of a word"),
        "--hidden": (256, "units of an LSTM, of each direction"),
        "--layers": (1, "of the LSTM"),
        "--vocabulary": (8000, "most ids of a column; rarer words share one"),
        "--tags": (45, "of a tagger, where the data has none"),
        "--batch-size": (64, "sentences of a mini-batch"),
        "--batches": (8, "mini-batches to measure, beside the largest"),
    }
    for flag, (default, what) in numbers.items():
        add(flag, type=positive, default=default, metavar="N", help=f"{what} (%(default)s)")
    add("--batch-sizes", type=positive, nargs="*", default=list(BATCH_SIZES), metavar="N",
        help="sizes to estimate the peak for, but for those above the number of "
        "sentences (8 16 32 64 128)")  # fmt: skip
    add("--device", type=device_name, default="cpu", metavar="NAME", help="where to measure: cpu, "
        "cuda or cuda:N (%(default)s)")  # fmt: skip
    add("--plan", action="store_true", help="plan the steps and run none: bytes alone, in seconds; "
        "a GPU of --device need not be there, nor CuPy")  # fmt: skip
    add("--precision", type=precision_of_values, default=FULL, metavar="NAME",
        help=f"{ROUNDING['precision']}; PyTorch runs under autocast (%(default)s)")  # fmt: skip
    add("--threads", type=positive, metavar="N", help="of dynbatch, on the CPU")
    add("--seed", type=int, default=0, metavar="N", help="of the shuffled order (%(default)s)")
    add("--memory-limit", metavar="SIZE", help="plan each form within so many bytes, such as 2GB: "
        "what fits, what is recomputed, at what cost")  # fmt: skip
    add("--json", metavar="FILE", help="write all numbers")
    add("--picture", metavar="FILE", help="draw bytes over a step and against batch size, as PNG")
    add("--pytorch", action="store_true", help="measure PyTorch's same model beside it, padded")


def run(options: argparse.Namespace) -> None:
    """Measure, print and write.

    Raises:
        DynbatchError, ImportError, OSError: as their messages say.
    """
    _require_what_comes_last(options)
    limit = options.memory_limit and parse_bytes("--memory-limit", options.memory_limit)
    if options.threads:
        set_num_threads(options.threads)
    text = _text(options)
    if text.blank_lines:
        print(f"{options.data}: {text.blank_lines} blank lines left out", file=sys.stderr)
    subject = _subject(options, text)
    if options.pytorch:
        TorchModel(subject.model)  # where there is none, it says so before all is measured
    if not options.plan:
        subject.model.to(options.device)
    comparison = compare_padding(
        subject.model,
        subject.loss,
        subject.examples,
        options.batch_size,
        pad=subject.pad,
        padded_loss=subject.padded_loss,
        num_batches=options.batches,
        batch_sizes=options.batch_sizes,
        seed=options.seed,
        memory_limit=limit,
        progress=True,
        plan_for=options.device if options.plan else None,
        precision=options.precision,
    )
    comparison = replace(
        comparison, title=f"{options.data}: {len(text.examples):,} sentences\n{comparison.title}"
    )
    if options.pytorch:
        numbers = (options.batch_size, options.batches, options.seed, options.precision)
        comparison = replace(
            comparison, peers=torch_forms(subject.model, subject.examples, *numbers)
        )
    print(f"{comparison}\n\n{READING}", end="")
    if options.json:
        comparison.to_json(options.json)
    if options.picture:
        comparison.picture(options.picture)


def _require_what_comes_last(options: argparse.Namespace) -> None:
    """Refuse now what would end the command after minutes of measuring.

    Raises:
        DataError: a package is missing, or a folder to write to; a file to write is a folder, the
            data, or a picture of no known format; PyTorch is to be measured where nothing runs.
    """
    if options.plan and options.pytorch:
        raise DataError(
            "--plan runs nothing, and PyTorch cannot be planned.\n  fix:  leave one out"
        )
    wanted = {"matplotlib": options.picture, "torch": options.pytorch}
    for package, is_wanted in wanted.items():
        if is_wanted and find_spec(package) is None:
            flag = "--picture" if package == "matplotlib" else "--pytorch"
            raise DataError(
                f"{flag} needs {package}.\n  fix:  pip install {package}, or leave it out"
            )
    for path in (options.json, options.picture):
        if path and not Path(path).absolute().parent.is_dir():
            raise DataError(f"{path}: there is no such folder to write to.")
        if path and Path(path).is_dir():
            raise DataError(f"{path}: is a folder.\n  give: the name of a file to write")
        if path and Path(path).resolve() == Path(options.data).resolve():
            raise DataError(f"{path}: holds the sentences.\n  give: another file to write")
    if options.picture:
        require_format(Path(options.picture))


def _text(options: argparse.Namespace) -> Text:
    """The sentences of the data, by its form, which may decide the model.

    Raises:
        DataError: the data is of none of the forms.
    """
    form = _form(options)
    if form == "tagging":
        tagged = read_tagged(options.data)
        options.model = options.model or "tagger"
        columns = [[list(one.words) for one in tagged], [list(one.tags) for one in tagged]]
    elif form == "classification":
        labelled = read_labelled(options.data)
        columns = [[one.text.split() for one in labelled]]
        if options.model is None:
            options.model, options.tags = "tagger", len({one.label for one in labelled})
        elif ":" in options.model:
            columns.append([[one.label] for one in labelled])
    else:
        return read(options.data, options.characters, options.vocabulary)
    if options.characters:
        columns[0] = [list(" ".join(words)) for words in columns[0]]
    return numbered(columns, options.vocabulary)


def _form(options: argparse.Namespace) -> str:
    """The purpose of the data for `dynbatch train`; "lines" where --model says how to read it,
    or where it is of none of the forms, which its reader then says."""
    if options.model in ("seq2seq", "language-model"):
        return "lines"
    refuse_pipe(options.data)
    try:
        task, seen = task_of(options.data)
    except DataError:
        return "lines"
    if task in ("tagging", "classification"):
        print(seen.partition(". It is read for")[0], file=sys.stderr)
    return task


def _subject(options: argparse.Namespace, text: Text) -> Subject:
    name = options.model or ("seq2seq" if text.is_parallel else "language-model")
    sizes: dict[str, Any] = {
        "embed": options.embed,
        "hidden": options.hidden,
        "layers": options.layers,
    }
    if ":" in name:
        return _of_the_user(name, text)
    if name == "seq2seq":
        _require_columns(options.data, name, text, 2)
        source, target = text.vocabularies
        model: Seq2Seq | LanguageModel = Seq2Seq(source, target, **sizes)
    elif name == "language-model":
        _require_columns(options.data, name, text, 1)
        model = LanguageModel(*text.vocabularies, **sizes)
    elif name == "tagger":
        return _tagger(options, text, sizes)
    else:
        raise DataError(
            f"--model {name}: unknown.\n  give: {', '.join(MODELS)}, or package.module:function"
        )
    return Subject(model, model.loss, text.examples)


def _tagger(options: argparse.Namespace, text: Text, sizes: dict[str, Any]) -> Subject:
    """A tagger's examples. Data without tags gets some: bytes do not depend on which."""
    examples: list[tuple[Array, ...]] = text.examples
    tags = options.tags
    if text.is_parallel:
        tags = text.vocabularies[1]
        for number, (words, sentence_tags) in enumerate(examples, start=1):
            if len(words) != len(sentence_tags):
                raise DataError(
                    f"{options.data}: sentence {number} has {len(words)} words and "
                    f"{len(sentence_tags)} tags.\n  rule: a tagger needs one tag for each word"
                )
    else:
        examples = [(words, words % tags) for (words,) in examples]
    model = Tagger(text.vocabularies[0], tags, **sizes)
    return Subject(model, model.loss, examples)


def _of_the_user(name: str, text: Text) -> Subject:
    """The model that a function of the user makes.

    Raises:
        DataError: there is no such function, or it returns something else.
    """
    make = function_of_the_user("--model", name)
    try:
        inspect.signature(make).bind(*text.vocabularies)
    except TypeError as error:
        raise DataError(
            f"--model {name}: {make.__name__}{inspect.signature(make)} cannot be called: {error}.\n"
            "  rule: called with the number of ids of each column, "
            f"{make.__name__}({', '.join(map(str, text.vocabularies))})"
        ) from error
    result = make(*text.vocabularies)
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4 or not callable(result[1]):
        raise DataError(
            f"--model {name}: it returned {described(result)}.\n"
            "  rule: (model, loss), (model, loss, pad) or (model, loss, pad, padded_loss)"
        )
    return Subject(result[0], result[1], text.examples, *result[2:])


def _require_columns(path: str, name: str, text: Text, columns: int) -> None:
    if len(text.vocabularies) != columns:
        wanted = ("one sentence", "source<TAB>target")[columns - 1]
        raise DataError(
            f"{path}: --model {name} needs {wanted} on each line.\n"
            f"  fix:  give such a file, or --model {MODELS[2] if columns == 2 else MODELS[0]}"
        )
