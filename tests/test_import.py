"""`import dynbatch` as a fresh interpreter sees it."""

import subprocess
import sys

OPTIONAL = ("cupy", "safetensors", "torch", "tqdm")


def test_importing_loads_numpy_alone_and_prints_nothing():
    code = "import sys, dynbatch; sys.exit(' '.join({*sys.modules} & {*sys.argv[1:]}) or 0)"
    command = [sys.executable, "-W", "error", "-c", code, *OPTIONAL]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("dynbatch").joinpath("py.typed").is_file()
