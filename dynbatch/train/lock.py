"""`locked`: lets one run at a time write a file, in a writable folder."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from dynbatch.errors import CheckpointError
from dynbatch.recent import free_at_fork

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""The error codes of a file system without locks."""


@dataclass
class _Held:
    """A path that a thread holds, for each of some blocks; for none, if an interrupt cut it off."""

    thread: int
    blocks: set[object]


_held: dict[Path, _Held] = {}
_held_guard = free_at_fork(threading.Lock())


@contextmanager
def locked(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold `path` for the block: no other process or thread may, and its folder can be written.

    The folder is made if it is missing, and removed again if it is still empty at the end. The lock
    is the system's (`flock`, of a file `.NAME.lock` beside it that says who holds it), so that it
    is gone when the process is, however that ended. The thread that holds it may take it again;
    a forked child holds nothing of its parent's. Where there is no `flock`, on Windows and some
    network file systems, only the folder is checked.

    Args:
        path: the file that will be written; None holds nothing.

    Raises:
        CheckpointError: another run holds it, or nothing can be written there.

    Example:
        >>> import tempfile
        >>> with locked(Path(tempfile.mkdtemp(), "run.safetensors")):
        ...     pass  # train
    """
    if path is None:
        yield
        return
    path = Path(path)
    made_folders = _folder_of(path)
    key, block = path.resolve(), object()
    try:
        _enter(key, path, block)
        yield
    finally:
        _leave(key, block)
        for folder in made_folders:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _folder_of(path: Path) -> list[Path]:
    """Make the folder of a file. Returns those that were missing, the lowest first."""
    missing: list[Path] = []
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        missing = [each for each in [path.parent, *path.parent.parents] if not each.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise _unwritable(path, f"{path.parent} is a file, not a folder") from None
    except NotADirectoryError:
        raise _unwritable(path, f"{path.parent} lies below a file") from None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    return missing


def _enter(key: Path, path: Path, block: object) -> None:
    with _held_guard:
        held, thread = _held.get(key), threading.get_ident()
        if held is None or not held.blocks:
            _acquire(key, path)
            _held[key] = _Held(thread, {block})
        elif held.thread == thread:
            held.blocks.add(block)
        else:
            raise _taken(path, "another thread of this process")


def _leave(key: Path, block: object) -> None:
    """Let go for a block, which may not have come to hold the path."""
    with _held_guard:
        held = _held.get(key)
        others = held.blocks - {block} if held is not None else set()
        if held is not None:
            held.blocks = others
        if not others and key in _handles:  # not in a child that was forked inside of the block
            lock, handle = _handles[key]
            if not handle.closed:
                if fcntl is None:
                    handle.close()  # Windows removes no open file, and has no lock here to keep
                with suppress(OSError):
                    lock.unlink()
                handle.close()
            _held.pop(key, None)
            del _handles[key]


_handles: dict[Path, tuple[Path, FileIO]] = {}


def _forget() -> None:
    """Hold no locks in a forked child: its parent keeps them."""
    for _, handle in _handles.values():
        with suppress(OSError):
            handle.close()  # the parent has its own, and with it the lock
    _held.clear()
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _acquire(key: Path, path: Path) -> None:
    lock = path.with_name(f".{path.name}.lock").absolute()
    while key not in _handles or _handles[key][1].closed:
        try:
            handle = FileIO(lock, "r+", opener=_created)
        except OSError as error:
            raise _unwritable(path, error.strerror or str(error)) from error
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(lock, handle):
                who = {"process": os.getpid(), "host": socket.gethostname()}
                handle.truncate(0)
                handle.write(json.dumps(who).encode())
                _handles[key] = lock, handle
            # else the run before removed the file between our opening and locking it
        except BlockingIOError:
            raise _taken(path, _holder(handle)) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise _unwritable(path, error.strerror or str(error)) from error
            _handles[key] = lock, handle
        finally:
            if (lock, handle) != _handles.get(key):
                handle.close()


def _created(lock: str, flags: int) -> int:
    return os.open(lock, flags | os.O_CREAT, 0o666)


def _is_still(lock: Path, handle: FileIO) -> bool:
    """Whether the open file is the one that others will find under its name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(lock))
    except FileNotFoundError:
        return False


def _holder(handle: FileIO) -> str:
    try:
        who = json.loads(os.pread(handle.fileno(), 1000, 0))
        return f"process {int(who['process'])} on {who['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _taken(path: Path, holder: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {holder} is training there; two runs would write over each other.\n"
        "  fix: wait until it ends, end it, or give this run another folder."
    )


def _unwritable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: nothing can be written there: {why}.\n"
        "  fix: give a folder that can be written, or make this one so (rights, space on the disk)."
    )
