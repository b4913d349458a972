"""`dynbatch train FILE`: a model of a file of text, by its form."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from shlex import quote
from textwrap import fill
from typing import Any, NoReturn

from dynbatch.errors import CheckpointError, DataError
from dynbatch.tasks.classification import Classification
from dynbatch.tasks.document_tuning import DocumentTuning
from dynbatch.tasks.fine_tuning import FineTuning
from dynbatch.tasks.forms import FORMS, task_of
from dynbatch.tasks.language_model import DocumentWriter
from dynbatch.tasks.learning import begun, learn, parts_of
from dynbatch.tasks.options import add_options as add_settings
from dynbatch.tasks.options import flag_of
from dynbatch.tasks.registry import TASKS, task_of_checkpoint
from dynbatch.tasks.settings import TaskSettings, refuse_other_settings, settings_of
from dynbatch.tasks.summary import long_example, memory_saved, speed
from dynbatch.tasks.task import Parts, Task
from dynbatch.tasks.training import place, prepared, refuse_to_write_over_a_run
from dynbatch.train import load_checkpoint, read_checkpoint, read_metrics
from dynbatch.train.progress import COLUMNS
from dynbatch.train.run_folder import CHECKPOINT, METRICS, earlier_run, model_file

SUMMARY = "train a model on a file of text"
HELP = """\
Train a model on your own file: a language model, a translator, a tagger or a
classifier. The form of the file tells which; --task says it. A part of the file
is held out, and after each epoch you see how well it is predicted. The run is a
folder that can be stopped at any moment, and goes on with --resume.

  dynbatch train poems.txt
  dynbatch train pairs.tsv --output runs/pairs --epochs 10 --device cuda
  dynbatch train labels.tsv --from minilm
  dynbatch train poems.txt --from smollm2 --lora 8
  dynbatch train --output runs/pairs --resume --epochs 20
"""
_SHOWN = "\n".join(
    [
        fill(f"{name:<16} {form}", COLUMNS, initial_indent="  ", subsequent_indent=" " * 19)
        for name, (form, _) in FORMS.items()
    ]
)
MORE = f"""\
files:
{_SHOWN}

  UTF-8; a line that cannot be read is named. 5 % of the examples are for
  validation and 5 % for a test at the end, by a hash of the example, so the
  same ones in each run. --dev FILE validates on that file, and all else trains.

runs:
  --output is the folder, runs/NAME of the file unless you say otherwise:
  model.safetensors, model.best.safetensors of the best validation, and
  metrics.jsonl. Ctrl-C saves. --resume goes on with the run's own settings. On
  the same machine, with as many threads, it ends with the bits of a run never
  stopped; on another it is as good.

options:
  dynbatch train FILE --help, or --task NAME --help, lists those of the task.

exit status:
  0; 1 after an error; 2 after a wrong option; 130 after Ctrl-C, when the run is
  saved.
"""

NUM_SHOWN = 3
"""Examples of the file that are shown before training."""

PROMPT = 200
"""The most characters of the prompt that is printed at the end."""

NUM_LOOKED_AT = 1000
"""Examples of which one becomes the prompt of the command that is printed at the end."""
KNOWN = {each.name: each for task in TASKS.values() for each in fields(task.Settings)}
"""The settings of all tasks, by name."""

_VARYING = {
    each.name
    for each in fields(TaskSettings)
    if len({getattr(task.Settings, each.name) for task in TASKS.values()}) > 1
}
"""The settings that are usually other ones in another task."""


def add_options(parser: argparse.ArgumentParser, words: Sequence[str] = ()) -> None:
    """Add the options of the command, among them those of the task that is asked for.

    Args:
        words: the command line, by which the task is told.
    """
    kind = _peeked(words)
    parser.add_argument(
        "--task", choices=list(TASKS), default=argparse.SUPPRESS, metavar="NAME",
        help=f"{', '.join(TASKS)} (by the form of the file)",
    )  # fmt: skip
    common = [each.name for each in fields(TaskSettings)]
    if kind is None:
        add_settings(parser, TaskSettings, varying=_VARYING)
        for name in KNOWN.keys() - common:  # so that `run` says why the task is not known
            _add_any(parser, KNOWN[name])
        return
    add_settings(parser, kind.Settings, common)
    names = [each.name for each in fields(kind.Settings) if each.name not in common]
    add_settings(parser.add_argument_group(kind.name), kind.Settings, names)
    offered = {each.name for each in fields(kind.Settings) if each.metadata["help"]}
    for name in KNOWN.keys() - offered:
        flag = flag_of(name)
        hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        parser.add_argument(flag, dest=name, action=_OfOtherTasks, nargs="?", **hidden)


def _peeked(words: Sequence[str]) -> type[Task] | None:
    """The task that a command line is for; None if it does not tell, which `run` says why."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--task", choices=list(TASKS))
    for each in KNOWN.values():
        _add_any(parser, each)
    try:
        values = vars(parser.parse_known_args(list(words))[0])
        return kind_of({name: value for name, value in values.items() if value})[0]
    except (argparse.ArgumentError, DataError, CheckpointError):
        return None


class _OfOtherTasks(argparse.Action):
    """An option that the task does not have: it is an error that names those that do."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object,
        option_string: str | None = None,
    ) -> NoReturn:  # fmt: skip
        having = [
            task.name
            for task in TASKS.values()
            for each in fields(task.Settings)
            if each.name == self.dest and each.metadata["help"]
        ]
        parser.error(f"{option_string} is for {', '.join(having)}; this is another task")


def _add_any(parser: argparse.ArgumentParser, setting: Field[Any]) -> None:
    """Add an option of any task, of whatever value, which help does not show."""
    flag = flag_of(setting.name)
    if setting.metadata["first"]:
        parser.add_argument(setting.name, nargs="?", help=argparse.SUPPRESS)
    elif setting.default is False:
        parser.add_argument(flag, dest=setting.name, action="store_true", help=argparse.SUPPRESS)
    else:
        parser.add_argument(flag, dest=setting.name, help=argparse.SUPPRESS)


def kind_of(values: dict[str, Any]) -> tuple[type[Task], str]:
    """The task that is asked for: by name, by the run that goes on, or by the form of the file; and
    a sentence that says how the file was understood.

    Raises:
        DataError:       there is no file, or its form tells nothing, or there is no such task.
        CheckpointError: there is no run to go on with, or it is of another task or none.
    """
    if values.get("resume"):
        checkpoint = _output(values) / CHECKPOINT
        if earlier_run(checkpoint) is None:
            raise CheckpointError(
                f"{checkpoint.parent}: there is no run to go on with.\n"
                "  rule: a run saves at each epoch's end, every thousandth update, and at Ctrl-C\n"
                "  fix:  begin it, without --resume; or give the --output of one that was saved"
            )
        kind = task_of_checkpoint(read_checkpoint(checkpoint))
        refuse_other_settings(
            checkpoint, {"task": kind.name}, {"task": values.get("task", kind.name)}
        )
        return kind, ""
    if "task" in values:
        kind = TASKS[values["task"]]
        return (_fine_tuned(kind) if values.get("from_") else kind), ""
    if "data" not in values:
        output = values.get("output")
        goes_on = output is not None and earlier_run(Path(output, CHECKPOINT)) is not None
        more = f"; or --resume, to go on with the run in {output}" if goes_on else ""
        raise DataError(
            f"dynbatch train: which file?\n  fix:  dynbatch train FILE{more}\n"
            "  help: dynbatch train --help"
        )
    name, said = task_of(values["data"])
    if name not in TASKS:
        raise DataError(f"{said}\n  rule: --task is one of {', '.join(TASKS)}")
    return (_fine_tuned(TASKS[name]) if values.get("from_") else TASKS[name]), said


def _fine_tuned(kind: type[Task]) -> type[Task]:
    """The task of a file where `--from` names a model to begin from.

    Raises:
        DataError: the file is neither of documents nor of texts with a label.
    """
    if issubclass(kind, DocumentWriter):
        return DocumentTuning
    if kind in (Classification, FineTuning):
        return FineTuning
    raise DataError(
        f"--from: the file is for {kind.name}.\n"
        f"  rule: a published encoder is fine-tuned on {Classification.form}; a causal model on "
        f"{DocumentWriter.form}\n"
        "  fix:  leave --from out, or give such a file"
    )


def _output(values: dict[str, Any]) -> Path:
    """The folder of the run: given, or by the name of the file."""
    if "output" not in values and "data" not in values:
        raise DataError("--resume: which run?\n  fix:  --output runs/NAME, or the file of the run")
    output = Path(values.get("output") or Path("runs", Path(values["data"]).stem))
    if output.suffix == ".safetensors":
        raise DataError(
            f"--output {output}: the name of a checkpoint.\n"
            f"  rule: --output is the folder of the run\n  fix:  --output {output.parent}"
        )
    return output


def run(options: argparse.Namespace) -> None:
    """Train, and say what came of it.

    Raises:
        DynbatchError, ImportError, OSError: as their messages say.
    """
    values = dict(vars(options))
    kind, said = kind_of(values)
    values["output"] = str(_output(values))
    values.pop("task", None)
    settings = settings_of(kind.Settings, values)
    if settings.data is None:
        raise DataError(f"{values['output']}: the run does not know its file.\n  fix:  give FILE")
    if settings.resume and not Path(settings.data).exists():
        raise DataError(
            f"{settings.data}: the run was trained on it, and there is no such file here.\n"
            "  rule: a run goes on with the content of its data, wherever the file lies\n"
            f"  fix:  dynbatch train FILE --output {quote(str(settings.output))} --resume"
        )
    refuse_to_write_over_a_run(settings)  # before the data is read, which takes time
    with prepared(settings):
        if said:
            print(fill(said, COLUMNS, break_long_words=False, break_on_hyphens=False))
        parts = parts_of(kind, settings)
        if not settings.resume:
            settings = replace(settings, **{**kind.fitted(parts.train, settings), **values})
        task = begun(kind, parts, settings)
        introduce(task, parts, settings)
        hint = f"dynbatch train --output {quote(str(settings.output))} --resume"
        learn(task, parts, settings, hint=hint)
        conclude(task, parts, settings)


def introduce(task: Task, parts: Parts, settings: TaskSettings) -> None:
    """Print what was understood of the file, and what will be trained."""
    print(f"train     {task.sizes(parts.train)}")
    if parts.dev:
        print(f"validate  {task.sizes(parts.dev)}, {settings.dev or 'held out by a hash'}")
    else:
        print("validate  nothing: there are too few examples to hold some out")
    if parts.test:
        print(f"test      {task.sizes(parts.test)}, held out by a hash")
    step = max(1, len(parts.train) // NUM_SHOWN)
    for text in parts.train[::step][:NUM_SHOWN]:
        print(f"  | {shortened(task.shown(text))}")
    if told := long_example(task, parts.train):
        print(f"warning: {told}", file=sys.stderr)
    for label, line in zip(["tokens", ""], task.tokens([*parts.dev, *parts.test]), strict=False):
        print(fill(line, COLUMNS, initial_indent=f"{label:<10}", subsequent_indent=" " * 10))
    trained = sum([p.size for p in task.model.parameters() if not p.frozen])
    part = f" ({trained:,} trained)" * (not task.saves_frozen)
    print(
        f"model     {task.name}, {task.model.num_parameters():,} parameters{part}; "
        f"{place(settings)}; epochs: {settings.epochs}; {settings.output}",
        flush=True,
    )


def conclude(task: Task, parts: Parts, settings: TaskSettings) -> None:
    """Print the test, speed and memory, and how to go on, with the model of the best validation."""
    folder = Path(str(settings.output))
    best = model_file(folder)
    load_checkpoint(best, task.model)
    if parts.test:
        print(f"test, {len(parts.test):,} examples that nothing was decided by:")
        print(task.report(parts))
    records = read_metrics(folder / METRICS)
    if rate := speed(records):
        print(f"speed: {rate} in training")
    if saved := memory_saved(records):
        print(fill(f"memory of a step at its peak: {saved}", COLUMNS))
    run = quote(str(folder))
    print(f"model: {best}\n\nto go on:")
    print(f"  dynbatch generate {run} {prompt_of(parts.dev or parts.train, task)}")
    print(f"  dynbatch plot {run}")
    print(f"  dynbatch train --output {run} --resume --epochs {2 * settings.epochs}")


def prompt_of(texts: Sequence[Any], task: Task) -> str:
    """A prompt such as one of these texts, quoted for a shell; a plain one if there is any.

    Args:
        texts: of the data; some are looked at.
    """
    prompts = {task.prompt(text) for text in texts[:NUM_LOOKED_AT]}
    prompt = min(
        [prompt[:PROMPT] for prompt in prompts],
        key=lambda text: (
            not text.isprintable(), "'" in text, text.startswith("-"), abs(len(text) - 30), text
        ),
    )  # fmt: skip
    return f"-- {quote(prompt)}" if prompt.startswith("-") else quote(prompt)


def shortened(line: str) -> str:
    """A line that fits the terminal behind "  | "."""
    most = COLUMNS - 4
    return line if len(line) <= most else f"{line[: most - 1]}…"
