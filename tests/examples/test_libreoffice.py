"""Catalogues as gettext writes them, read as pairs; the fetched package where it is there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dynbatch.errors import DataError
from examples.corpora import libreoffice
from examples.corpora.fetching import cache_folder

HEADER = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n"


def write_catalogue(path: Path, messages: dict[str, str]) -> None:
    """A .mo file: two tables of (length, offset), then all texts."""
    keys = sorted(messages)
    texts = [key.encode() for key in keys] + [messages[key].encode() for key in keys]
    at, table = 28 + 16 * len(keys), b""
    for text in texts:
        table += struct.pack("<II", len(text), at)
        at += len(text) + 1
    head = struct.pack("<7I", 0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + table + b"".join([text + b"\0" for text in texts]))


def test_messages_are_pairs_of_tokens_without_context_plurals_and_repetitions(
    tmp_path: Path,
) -> None:
    messages = {
        "": HEADER,
        "menu\x04Save ~As...": "Speichern ~unter...",
        "dialog\x04Save ~As...": "Speichern ~unter...",
        "OK": "OK",
        "x\x04one page\0%1 pages": "eine Seite\0%1 Seiten",
    }
    write_catalogue(tmp_path / "usr/de/LC_MESSAGES/a.mo", messages)
    write_catalogue(tmp_path / "usr/de/LC_MESSAGES/b.mo", {"": HEADER, "Cut": "Ausschneiden"})
    assert libreoffice.load(tmp_path) == [
        (("Cut",), ("Ausschneiden",)),
        (("Save", "~", "As", ".", ".", "."), ("Speichern", "~", "unter", ".", ".", ".")),
        (("one", "page"), ("eine", "Seite")),
    ]


def test_folder_without_catalogues_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no German catalogues") as error:
        libreoffice.load(tmp_path)
    assert "apt-get download" in str(error.value)


def test_the_package_has_many_short_pairs_and_some_long_ones() -> None:
    if not (cache_folder() / libreoffice.PACKAGE.name).exists():
        pytest.skip("not fetched: python -m examples.corpora.pairs libreoffice")
    pairs = libreoffice.load()
    assert len(pairs) > 15_000
    lengths = sorted([len(source) for source, _ in pairs])
    assert lengths[len(lengths) // 2] < 6 and lengths[-1] > 100
