"""`dynbatch generate MODEL`: text or labels, for prompts of any number and length."""

from __future__ import annotations

import argparse
import json
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from tqdm import tqdm

from dynbatch.commands.arguments import add_base
from dynbatch.commands.loading import TextModel, load
from dynbatch.commands.writing import Writing
from dynbatch.errors import ArgumentError, DataError
from dynbatch.generation.config import SAMPLING, GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.kernels.backends import rounding
from dynbatch.kernels.runtime.parallel import set_num_threads
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.memory.sizes import parse_bytes
from dynbatch.tasks.fine_tuning import FineTuning
from dynbatch.tasks.options import (
    ROUNDING,
    device_name,
    flag_of,
    positive,
    precision_name,
    precision_of_values,
)
from dynbatch.tasks.task import LabellingTask
from dynbatch.text.lines import printable, utf8_text
from dynbatch.train.progress import COLUMNS, tell_backend

SUMMARY = "write text, tags or labels with a model"
HELP = """\
Continue prompts, write targets for sources, or write the tags or the label
of each line; all side by side and without padding. What a prompt gets does not
depend on the others.

  dynbatch generate gpt2/ "Once upon a time" --top-p 0.9 --max-new-tokens 50
  dynbatch generate opus-mt-en-de/ --file lines.txt --num-beams 4 -n 3 --scores
  dynbatch generate runs/labels "Where is my parcel?" --json
"""
MORE = """\
model:
  A folder in the layout of Hugging Face (GPT-2, Llama, Mistral, Qwen, Gemma,
  Mamba-2, T5, Marian, BART; BERT and RoBERTa that classify texts), or a
  checkpoint of dynbatch, or a run's folder, whose best checkpoint is taken.
  Nothing in it is executed. A checkpoint of your own model needs --loader
  package.module:function, such as network:load for load in network.py of this
  folder; load(path) returns (model, tokenizer, GenerationConfig).

prompts:
  Arguments; else the lines of --file; else those of standard input, which are
  read when there is room for them in the batch. Blank lines are left out.

output:
  One result alone is printed as it comes, whole characters at a time. Of
  several each is a line, in the order of the prompts, with line feeds, tabs and
  backslashes as \\n, \\t and \\\\. --scores puts before each Σ log p of its tokens
  by the model, in nats, and a tab. --json tells more: "log_prob" is that sum,
  "score" what beams are ranked by.
  A tagger writes the/DT old/JJ man/NN, a classifier the label of a line; with
  --json words and tags, or the probabilities of all labels. Words stand between
  blanks; a tagger cuts a full stop off a word that it does not know. Of a text
  longer than BERT or RoBERTa reads, the first tokens count; a warning says so.

choosing:
  The model's generation_config.json, changed by the options here. Tokens are
  drawn where --temperature, --top-k, --top-p or --min-p is given, or -n without
  beams. A language model of dynbatch train draws unless --greedy is given.
  Prompt k draws from --seed plus k.

exit status:
  0; 1 after an error, or where a prompt was refused or failed, as it does where
  logits are NaN: why is said on standard error, its line is empty, and the
  others go on; 2 after a wrong option.

more:
  dynbatch generate runs/language-model "" --temperature 0.8 -n 5 --json
  echo "17 4 98" | dynbatch generate gpt2/ --tokenizer ids --stop " 13"
"""

_NUMBERS: dict[str, tuple[Any, str]] = {
    "max_new_tokens": (positive, "most tokens of a result"),
    "min_new_tokens": (int, "fewest tokens before its end"),
    "temperature": (float, "divides the logits; below 1 likely tokens come more often"),
    "top_k": (int, "draw from the N most probable tokens"),
    "top_p": (float, "draw from the most probable tokens that together have probability X"),
    "min_p": (float, "draw from tokens with at least X times the largest probability"),
    "num_beams": (positive, "follow the N most probable sentences side by side"),
    "length_penalty": (float, "of beams: score = log-probability / length^X"),
    "repetition_penalty": (float, "above 1, tokens come less often a second time"),
    "no_repeat_ngram_size": (int, "no N tokens come a second time in a row"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a folder or a checkpoint, see below")
    add("prompts", metavar="PROMPT", nargs="*", help="texts to continue, or sources")
    add("--file", metavar="FILE", help="one prompt a line, UTF-8")
    add("--tokenizer", metavar="NAME", help="bytes, ids, or a folder (that of the model)")
    makes = parser.add_mutually_exclusive_group().add_argument
    makes("--loader", metavar="FUNCTION", help="makes a model of your own, see below")
    add_base(makes)
    for name, (kind, what) in _NUMBERS.items():
        shown = "X" if kind is float else "N"
        add(flag_of(name), type=kind, metavar=shown, help=what)
    add("-n", "--num-return-sequences", type=positive, metavar="N", help="results of each prompt: "
        "drawn, or the best of the beams")  # fmt: skip
    add("--greedy", action="store_true", help="always the most probable token")
    add("--stop", action="append", metavar="TEXT", help="ends a result; may be given repeatedly")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (%(default)s)")
    add("--batch-size", type=positive, default=64, metavar="N", help="most prompts side by side "
        "(%(default)s)")  # fmt: skip
    add("--memory-limit", metavar="SIZE", help='most bytes of caches, such as "2GB"')
    add("--precision", type=precision_of_values, metavar="NAME", help="what caches keep: bfloat16 "
        f"takes half the memory ({FULL})")  # fmt: skip
    add("--matmul", type=precision_name, metavar="NAME", help=ROUNDING["matmul"])
    add("--dtype", type=precision_of_values, default=FULL, metavar="NAME", help="of weights: "
        "bfloat16 reads those of Hugging Face's families in 16 bits (%(default)s)")  # fmt: skip
    add("--device", type=device_name, default="cpu", metavar="NAME", help="where the model runs: "
        "cpu, cuda or cuda:N (%(default)s)")  # fmt: skip
    add("--threads", type=positive, metavar="N", help="on the CPU (one a processor)")
    add("--scores", action="store_true", help="before each result its log-probability in nats and "
        "a tab")  # fmt: skip
    add("--json", action="store_true", help="an object a prompt: its results with tokens, scores "
        "and reasons")  # fmt: skip
    add("--quiet", action="store_true", help="no progress, and no last line")


def run(options: argparse.Namespace) -> int:
    """Write what is asked for. The exit status is 1 where a prompt was refused or failed.

    Raises:
        DynbatchError, ImportError, OSError: as their messages say.
    """
    if options.threads:
        set_num_threads(options.threads)
    known = options.prompts or (list(_lines(options.file)) if options.file else None)
    prompts = iter(_lines(None) if known is None else known)
    first = list(islice(prompts, 2))
    if not first:
        raise DataError(
            f"{options.file or 'standard input'}: there is no prompt.\n"
            "  fix:  give one a line, or as an argument"
        )
    loaded = load(options.model, options.loader, options.tokenizer, options.dtype, options.from_)
    loaded.model.to(options.device)
    if not isinstance(loaded, TextModel):
        return _label(loaded, chain(first, prompts), options)
    config = changed(loaded.config, options)
    limit = options.memory_limit and parse_bytes("--memory-limit", options.memory_limit)
    precision = options.precision or FULL
    engine = Engine(
        loaded.model, config, tokenizer=loaded.tokenizer, memory_limit=limit,
        matmul=options.matmul, precision=precision,
    )  # fmt: skip
    is_alone = len(first) == 1 and config.num_return_sequences == 1
    is_alone = is_alone and not (options.json or options.scores)
    writing = Writing(engine, loaded.tokenizer, config, chain(first, prompts))
    as_seen = printable if sys.stdout.isatty() else str
    begin = time.perf_counter()
    with tqdm(
        desc="prompts",
        total=known and len(known),
        disable=is_alone or options.quiet or None,
        ncols=COLUMNS,
    ) as progress:
        for piece in writing.pieces(options.batch_size, is_alone, options.json, options.scores):
            progress.update(writing.ended - progress.n)
            tqdm.write(as_seen(piece), end="")
            sys.stdout.flush()
    if not options.quiet:
        keys = "keys and " * (precision != FULL)
        how = keys + rounding(options.matmul, precision, options.device != "cpu")
        said = writing.summary(time.perf_counter() - begin)
        print(", ".join(filter(None, [said, how])), file=sys.stderr)
        tell_backend(loaded.model.parameters()[0])
    return 1 if writing.refused else 0


def _label(task: LabellingTask, lines: Iterator[str], options: argparse.Namespace) -> int:
    """Write the labels that a tagger or a classifier finds, a line for each line of text.

    Raises:
        ArgumentError: an option is given that is of writing text.
    """
    names = (*_NUMBERS, "num_return_sequences", "greedy", "stop", "memory_limit", "scores",
             "precision")  # fmt: skip
    extra = () if isinstance(task, FineTuning) else ("tokenizer",)
    for name in (*names, *extra):
        if getattr(options, name) not in (None, False):
            flag = flag_of(name)
            raise ArgumentError(
                f"{flag}: {options.model} is a model for {task.name}, which chooses no tokens.\n"
                f"  rule: {flag} is for models that write text\n  fix:  leave it out"
            )
    as_seen = printable if sys.stdout.isatty() else str
    while batch := list(islice(lines, options.batch_size)):
        for answer in task.label(batch, options.matmul or FULL):
            line = json.dumps(answer, ensure_ascii=False) if options.json else task.line(answer)
            print(as_seen(line))
        sys.stdout.flush()
    return 0


def changed(config: GenerationConfig, options: argparse.Namespace) -> GenerationConfig:
    """The model's own way of choosing, changed by the options.

    Raises:
        ArgumentError: a value is out of its range, or two contradict each other.
    """
    values = {name: getattr(options, name) for name in (*_NUMBERS, "num_return_sequences")}
    changes: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    beams, count = changes.get("num_beams", 1), changes.get("num_return_sequences", 1)
    drawn = [name for name in SAMPLING if name in changes]
    if options.greedy and drawn:
        flag = flag_of(drawn[0])
        raise ArgumentError(
            f"--greedy with {flag}.\n"
            f"  rule: --greedy takes the most probable token, {flag} says how to draw\n"
            f"  fix:  leave one of them out"
        )
    if drawn and beams > 1:
        flag = flag_of(drawn[0])
        raise ArgumentError(
            f"--num-beams {beams} with {flag}.\n"
            f"  rule: beams follow the most probable texts, {flag} says how to draw\n"
            f"  fix:  leave one of them out"
        )
    if beams > 1 and count > beams:
        raise ArgumentError(
            f"-n {count} with --num-beams {beams}.\n"
            "  rule: of beams there are as many results as beams, or fewer\n"
            f"  fix:  --num-beams {count}; or leave it out, to draw {count} results"
        )
    if options.greedy:
        changes |= {"do_sample": False, "num_beams": beams}
    elif drawn:
        changes |= {"do_sample": True, "num_beams": beams}
    elif beams > 1:
        changes["do_sample"] = False
    elif count > config.num_beams:
        changes |= {"do_sample": True, "num_beams": 1}
    if "max_new_tokens" in changes:
        changes["max_length"] = None
    if options.stop:
        changes["stop_strings"] = tuple(options.stop)
    return replace(config, **changes, seed=options.seed)


def _lines(file: str | None) -> Iterator[str]:
    """The lines of a file, or of standard input, that are not blank; none is read ahead. A warning
    tells of blank ones between others: results are not on the lines of their prompts then.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    name = file or "standard input"
    if file is None and sys.stdin.isatty():
        print("prompts, one a line; Ctrl-D ends them:", file=sys.stderr)
    blank = first = between = 0
    try:
        with open(file, "rb") if file else nullcontext(sys.stdin.buffer) as lines:
            for number, line in enumerate(lines, start=1):
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    text = utf8_text(f"{name}:{number}", line.removesuffix(b"\n"))
                    # Blank lines at the end are not between prompts, and need no warning.
                    between = blank
                    yield text.removesuffix("\r")
                else:
                    blank, first = blank + 1, first or number
        if between:
            said = f"{between:,} blank lines have" if between > 1 else "a blank line has"
            print(f"warning: {name}:{first}: {said} no result", file=sys.stderr)
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}.") from None
