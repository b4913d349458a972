"""Debian's packages of data: unpacked into a cache folder, not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dynbatch.errors import DataError
from examples.corpora.brown import cache_folder


def fetch(package: str) -> Path:
    """What a package unpacks to, in the cache folder (see `brown.cache_folder`).

    Raises:
        DataError: it is not there, and Debian's tools are missing or cannot get it.
    """
    cached = cache_folder() / package
    if cached.exists():
        return cached
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise DataError(
            f"{package} is not here, nor Debian's tools to get it.\n  fix:  {by_hand(package)}"
        )
    print(f"fetching Debian's {package} into {cached.parent}", file=sys.stderr)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        _run(["apt-get", "download", package], folder, package)
        (archive,) = Path(folder).glob("*.deb")
        _run(["dpkg-deb", "-x", archive.name, package], folder, package)
        os.replace(Path(folder, package), cached)
    return cached


def by_hand(package: str) -> str:
    """How to get a package on another machine."""
    return (
        f"apt-get download {package}; dpkg-deb -x {package}_*.deb FOLDER\n"
        "        where there are Debian's tools and a network (0.9 MB), then give FOLDER"
    )


def _run(command: list[str], folder: str, package: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join([f"  {line}" for line in done.stderr.splitlines()[:3]])
        raise DataError(f"{' '.join(command)} failed.\n{said}\n  fix:  {by_hand(package)}")
