"""Atomic writes: a file is replaced whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` when the block ends without an error.

    The temporary is flushed to the disk before it takes the name, and the folder after. When the
    block raises, or the disk is full, the temporary is removed and `path` is what it was; an
    `OSError` that names the temporary, or no file, names `path`. The temporary lies in a folder of
    its own, `.NAME.saving`, where a writer may have temporaries, too: safetensors has. A process
    that is killed leaves that folder, which the next save removes, or `remove_leftover` where none
    is sure to come.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "notes.txt")
        >>> with replacing(path) as temporary:
        ...     _ = temporary.write_text("whole", encoding="utf-8")
        >>> path.read_text(encoding="utf-8")
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    _remove(aside)
    temporary = aside / path.name
    try:
        aside.mkdir()
        with open(temporary, "wb") as file:
            mode = os.fstat(file.fileno()).st_mode  # what the user's umask gives
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # a writer may have put a private file of its own in place
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and str(error.filename or aside).startswith(str(aside)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        _remove(aside)
    _flush_folder(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Make a file hold this text, in UTF-8 and the same bytes on any system; see `replacing`."""
    with replacing(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def remove_leftover(path: Path) -> None:
    """Remove what a process that was killed while it saved `path` has left. Nobody saves it now."""
    _remove(_aside(path))


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.saving")


def _remove(aside: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(aside)
    aside.unlink(missing_ok=True)  # a file, as earlier versions left it


def _flush_folder(folder: Path) -> None:
    """Make the new name last through a power failure. Some file systems and Windows cannot."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
