"""The files of a checkpoint's folder: which there are, and their JSON.

A folder may come from anywhere. Nothing in it is executed, no path in it leads out of it, and what
is allocated grows with the size of its files, not with the numbers that they hold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynbatch.errors import CheckpointError, DynbatchError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_JSON = 1 << 20
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def fault(path: Path, problem: str, fix: str) -> CheckpointError:
    """The error for a file that cannot be read."""
    return CheckpointError.at_caller(f"{path}: {problem}; nothing was loaded.\n  fix:  {fix}")


def caused(path: Path, what: str, error: Exception, fix: str) -> CheckpointError:
    """The error where what a file says is refused further down.

    Args:
        what: cannot be made of it.
        fix:  where the cause has none of its own.
    """
    problem, advice = error.parts() if isinstance(error, DynbatchError) else (str(error), "")
    return CheckpointError.at_caller(
        f"{path}: no {what} can be made from it: {problem}; nothing was loaded.\n"
        + (advice if "  fix:  " in advice else f"  fix:  {fix}")
    )


def damaged(path: Path, problem: str) -> CheckpointError:
    """The error for a file that is not what a writer of checkpoints makes."""
    return fault(path, problem, "it was cut short, damaged or made to harm; take another copy")


def shorten(text: object, most: int = 60) -> str:
    """Text out of a file, as errors quote it."""
    if isinstance(text, int) and abs(text) >> 200:
        return "a large number"
    whole = repr(text[:most] if isinstance(text, str | list) else text)
    return whole if len(whole) <= most else f"{whole[:most]}…"


def file_of(folder: Path, name: str) -> Path:
    """A regular file of the folder.

    A link may lead to another file of the folder, or to the `blobs` of Hugging Face's cache, where
    the folder is one of its snapshots.

    Raises:
        CheckpointError: it is absent, not a regular file, or elsewhere.
    """
    path = folder / name
    if name in ("", ".", "..") or "\0" in name or Path(name).name != name or "\\" in name:
        raise damaged(folder, f"{shorten(name)} is not the name of a file in the folder")
    try:
        target, home = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
        is_file = target.is_file()
    except (OSError, ValueError) as error:  # a name too long, or with what no name has
        raise damaged(
            folder, f"{shorten(name)} cannot be opened ({shorten(str(error))})"
        ) from error
    if not is_file and not home.exists():
        raise fault(
            folder, "there is no such file or folder",
            "check the path; a published model is fetched by: hf download OWNER/NAME --local-dir "
            "FOLDER",
        )  # fmt: skip
    if not is_file and name == CONFIG and (folder / ADAPTER_CONFIG).is_file():
        raise fault(
            folder, "it has an adapter, and no model",
            "load the model that was adapted, and then "
            f'models.pretrained.load_adapter(model, "{folder}")',
        )  # fmt: skip
    if not is_file:
        problem = "not a regular file" if os.path.lexists(path) else "there is no such file"
        or_run = (
            f'; load_pretrained("{folder}") reads a run, and dynbatch convert {folder} FOLDER '
            "makes such a folder of it"
        ) * _may_be_run(path)
        raise fault(path, problem, f"give a folder that has {name}{or_run}")
    blobs = home.parent.parent / "blobs"
    if target.parent != home and not (home.parent.name == "snapshots" and target.parent == blobs):
        raise fault(path, "a link that leads out of the folder", "put the file itself there")
    return path


def _may_be_run(config: Path) -> bool:
    """Whether what lacks a config.json may be a run of dynbatch, or its checkpoint."""
    folder = config.parent
    return config.name == CONFIG and (folder / WEIGHTS if folder.is_dir() else folder).is_file()


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder, and the file of each tensor if there is an index.

    A single file comes before an index, as in `transformers`.

    Raises:
        CheckpointError: there is none, or only what pickle wrote, or the index is wrong.
    """
    if (folder / WEIGHTS).exists():
        return [file_of(folder, WEIGHTS)], None
    if not (folder / INDEX).exists():
        for name in PICKLES:
            if (folder / name).exists():
                raise fault(
                    folder / name, "a pickle, which can execute anything when it is read",
                    "have PyTorch take its tensors alone, once:\n"
                    f"        dynbatch convert {folder / name} {folder / WEIGHTS}",
                )  # fmt: skip
        raise fault(folder, f"neither {WEIGHTS} nor {INDEX} is there", "check the folder")
    files = read_index(file_of(folder, INDEX))
    return [file_of(folder, name) for name in sorted(set(files.values()))], files


def read_index(path: Path, suffixes: tuple[str, ...] = (".safetensors",)) -> dict[str, str]:
    """The file of each tensor, as the index of a checkpoint in several files says it.

    Raises:
        CheckpointError: it does not say so, or a name has none of the endings.
    """
    files = read_json(path, 1 << 26).get("weight_map")
    if not isinstance(files, dict) or not all([isinstance(n, str) for n in files.values()]):
        raise damaged(path, "'weight_map' does not give the file of each tensor")
    for name in sorted(set(files.values())):
        if not name.endswith(suffixes):
            kind = "a safetensors file" if len(suffixes) == 1 else "a file of tensors"
            raise damaged(path, f"{shorten(name)} is not the name of {kind}")
    return files


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object in a JSON file of at most `most` bytes.

    Raises:
        CheckpointError: it is larger, or not the text of an object, or a key stands there twice.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(min(size, most))
    except OSError as error:
        raise fault(path, f"it cannot be read ({error.strerror})", "check the folder") from error
    if size > most:
        raise damaged(path, f"larger than {most:,} bytes")
    try:
        value = json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not JSON ({shorten(str(error))})") from error
    if not isinstance(value, dict):
        raise damaged(path, "not a JSON object")
    return value


def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict.

    Raises:
        ValueError: two have one key.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return made
