"""Files that compilers made for the tests, kept between runs under names of their contents."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def built(name: str, made_of: Sequence[str], make: Callable[[Path, Path], None]) -> Path:
    """The file of `make(path, folder to work in)`: of an earlier time, if nothing changed.

    Where the checkout lies is no part of that: another one builds nothing anew.

    Args:
        name:    of the file in the cache, with {} where its key goes.
        made_of: all texts that the result depends on.
        make:    writes the file; what it raises is raised, and nothing is kept.
    """
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:20]
    folder = _folder()
    path = folder / name.format(key)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with (
            alone(folder / f"{key}.lock"),
            tempfile.TemporaryDirectory(dir=folder) as work,
        ):
            if not path.exists():
                make(Path(work, "out"), Path(work))
                os.replace(Path(work, "out"), path)
    return path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is inside: tests that run side by side build each file once."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    path.unlink(missing_ok=True)


def _folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    folder = Path(root) if root else Path(tempfile.gettempdir(), f"dynbatch-{os.getuid()}")
    folder = folder / "dynbatch-simulator"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
