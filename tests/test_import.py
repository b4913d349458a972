"""`import dynbatch`: what it loads, and what it says of a package that is missing."""

import importlib
import subprocess
import sys

import pytest

import dynbatch as db

# What an import adds beside the standard library; what the interpreter starts with does not count.
CODE = """
import sys
before = set(sys.modules)
import dynbatch
added = {name.split(".")[0] for name in set(sys.modules) - before}
of_numpy = {name for name in added if "cython" in name}
print(sorted(added - of_numpy - set(sys.stdlib_module_names)))
"""


def test_importing_loads_numpy_alone_and_prints_nothing():
    command = [sys.executable, "-W", "error", "-c", CODE]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "['dynbatch', 'numpy']\n"


@pytest.mark.parametrize(
    ("package", "module", "told"),
    [
        (
            "hypothesis", "dynbatch.testing.strategies",
            "dynbatch.testing.strategies needs hypothesis.\n  fix:  pip install hypothesis",
        ),
        (
            "torch", "dynbatch.torch",
            r"(?s)dynbatch.torch needs PyTorch.*  fix:  pip install torch, or 'dynbatch\[torch\]'",
        ),
    ],
)  # fmt: skip
def test_a_module_whose_package_is_missing_says_what_to_install(package, module, told, monkeypatch):
    parent, _, name = module.rpartition(".")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(vars(sys.modules[parent]), name, raising=False)
    with pytest.raises(ImportError, match=told):
        getattr(db, name) if parent == "dynbatch" else importlib.import_module(module)


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("dynbatch").joinpath("py.typed").is_file()
