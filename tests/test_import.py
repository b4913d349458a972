"""`import dynbatch`: what it loads, and what it says of a package that is missing."""

import importlib
import subprocess
import sys

import pytest

import dynbatch as db
from dynbatch import models, optim, train

# What an import adds beside the standard library; what the interpreter starts with does not count.
CODE = """
import sys
before = set(sys.modules)

def added():
    names = {name.split(".")[0] for name in set(sys.modules) - before}
    of_others = {name for name in names if "cython" in name or name == "__mp_main__"}
    return sorted(names - of_others - set(sys.stdlib_module_names))

import dynbatch
print(added())
sys.modules["_multiprocessing"] = None  # browsers start no processes
import dynbatch.pictures, dynbatch.train
print(added())
import dynbatch.commands.main, dynbatch.tasks
print(added())
"""


def test_importing_loads_numpy_alone_and_prints_nothing():
    command = [sys.executable, "-W", "error", "-c", CODE]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == 2 * "['dynbatch', 'numpy']\n" + "['dynbatch', 'numpy', 'tqdm']\n"


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


def test_training_that_is_to_be_saved_says_before_that_safetensors_is_missing(
    monkeypatch, tmp_path
):
    model = models.Linear(2, 1)
    of_run = (model, optim.Adam(model), lambda graph, example: None, train.SentenceBatches([1], 1))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = tmp_path / "run.safetensors"
    told = r"(?s)a checkpoint is a file of safetensors.*  fix:  pip install safetensors;"
    with pytest.raises(ImportError, match=told):
        train.Trainer(*of_run, checkpoint_path=path)
    with pytest.raises(ImportError, match=told):
        train.save_checkpoint(path, model)
    assert not list(tmp_path.iterdir())


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("dynbatch").joinpath("py.typed").is_file()
