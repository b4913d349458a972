"""The folder of compiled libraries: the user's own, and never half a file.

What is loaded is run. So only files of the user that nobody else can write are read, and the name
of each ends with the digest of its content: a truncated or changed file is not loaded.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

VARIABLE = "DYNBATCH_CACHE"
WAIT = 60
"""Seconds after which a process no longer waits for what another one makes."""


@cache
def folder() -> Path:
    """The folder of compiled libraries, made if it is not there.

    `$DYNBATCH_CACHE`, else `dynbatch` in `$XDG_CACHE_HOME` or `~/.cache`; where that cannot be
    written, or others can write it, a temporary folder of this process.
    """
    for path in _candidates():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_private(path) and os.access(path, os.W_OK | os.X_OK):
                return path
        except OSError:
            continue
    return _temporary()


def _candidates() -> list[Path]:
    wanted = os.environ.get(VARIABLE)
    if wanted:
        return [Path(wanted)]
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return [(Path(base) if base else Path.home() / ".cache") / "dynbatch" / "c"]
    except RuntimeError:  # no home
        return []


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _temporary() -> Path:
    _kept.append(tempfile.TemporaryDirectory(prefix="dynbatch-", ignore_cleanup_errors=True))
    print(
        f"dynbatch: compiled kernels are kept in {_kept[-1].name} for this process only, as no "
        f"cache folder can be used; {VARIABLE}=FOLDER names another",
        file=sys.stderr,
    )
    return Path(_kept[-1].name)


def is_private(path: Path) -> bool:
    """Whether this user owns a file or folder, and nobody else can write it.

    Windows tells neither by these numbers, and there a user's home is the user's alone.
    """
    status = path.stat()
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def find(name: str, key: str) -> Path | None:
    """The library kept under a key, if its content is what was written."""
    start = f"{name}-{key}-"
    for file_name in sorted([file for file in os.listdir(folder()) if file.startswith(start)]):
        path = folder() / file_name
        try:
            if is_private(path) and path.stem.endswith("-" + _digest(path.read_bytes())):
                return path
        except OSError:
            continue
    return None


@contextmanager
def alone() -> Iterator[None]:
    """Let one process at a time make what all need, while the others wait and then find it.

    Where the folder's file system has no locks, or the one that makes it stands still, they make it
    too, as `keep` allows.
    """
    if fcntl is None:
        yield
        return
    handle, end = os.open(folder(), os.O_RDONLY), time.monotonic() + WAIT
    try:
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # for a child, too, that was forked meanwhile
        os.close(handle)


def keep(name: str, key: str, write: Callable[[Path], None]) -> Path:
    """Keep what `write(path)` writes, under its key.

    Several processes may do so at once: each writes a file of its own, and renames it.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    handle, made = tempfile.mkstemp(prefix=f".{name}-", suffix=".tmp", dir=folder())
    os.close(handle)
    path = Path(made)
    try:
        write(path)
        content = path.read_bytes()
        if not content:
            raise OSError(f"nothing was written to {path}")
        path.chmod(0o700)
        target = folder() / f"{name}-{key}-{_digest(content)}.so"
        path.replace(target)
        return target
    finally:
        path.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
