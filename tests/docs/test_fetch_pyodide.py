"""`.ci/fetch_pyodide.py`: what fetches Python for browsers, without a network."""

import importlib.util
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/fetch_pyodide.py"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, for a site that asks for two files of npm's archive."""
    spec = importlib.util.spec_from_file_location("fetch_pyodide", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    integrity = {name: script.integrity_of(name.encode()) for name in ("a.js", "b.wasm")}
    site = tmp_path / "pyodide.json"
    site.write_text(json.dumps({"version": "1", "integrity": integrity}), "utf-8")
    monkeypatch.setattr(script, "SITE", site)
    return script


def fetching(files):
    """A stand-in for `subprocess.run`, whose npm has these files."""

    def run(command, cwd, **_):
        if command[0] == "npm":
            with tarfile.open(Path(cwd, "pyodide-1.tgz"), "w:gz") as archive:
                for name, content in files.items():
                    path = Path(cwd, name)
                    path.write_bytes(content)
                    archive.add(path, f"package/{name}")

    return run


def test_all_files_come_or_none(script, monkeypatch, tmp_path):
    folder = tmp_path / "pyodide"
    changed = fetching({"a.js": b"a.js", "b.wasm": b"another"})
    monkeypatch.setattr(script.subprocess, "run", changed)
    with pytest.raises(SystemExit, match=r"^b\.wasm: not there as it was released$"):
        script.fetch(folder)
    assert not folder.exists()
    folder.mkdir()
    for name in ("a.js", "b.wasm"):
        (folder / name).write_text("of an earlier version", "utf-8")
    whole = fetching({"a.js": b"a.js", "b.wasm": b"b.wasm"})
    monkeypatch.setattr(script.subprocess, "run", whole)
    script.fetch(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a.js": b"a.js", "b.wasm": b"b.wasm"
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("npm"), subprocess.CalledProcessError(1, ["npm"])],
    ids=["not installed", "no network"],
)
def test_what_cannot_be_fetched_is_one_line(script, monkeypatch, tmp_path, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(script.subprocess, "run", fail)
    with pytest.raises(SystemExit, match=r"^pyodide@1 cannot be fetched: .*npm"):
        script.fetch(tmp_path / "pyodide")
