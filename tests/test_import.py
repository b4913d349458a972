"""`import dynbatch` as a fresh interpreter sees it."""

import subprocess
import sys

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


def test_strategies_without_hypothesis_say_what_to_install():
    code = "import sys; sys.modules['hypothesis'] = None; import dynbatch.testing.strategies"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "dynbatch.testing.strategies needs hypothesis" in result.stderr
    assert "fix:  pip install hypothesis" in result.stderr


def test_a_part_of_pytorch_without_pytorch_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import dynbatch as db; db.torch"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "dynbatch.torch needs PyTorch" in result.stderr
    assert "fix:  pip install torch, or 'dynbatch[torch]'" in result.stderr


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("dynbatch").joinpath("py.typed").is_file()
