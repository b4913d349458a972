"""The command `dynbatch` while it is being imported: it ends in a line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FAULT = """
import importlib.abc, sys

class Fault(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "dynbatch.graph":
            raise {0}

sys.meta_path.insert(0, Fault())
"""

SCRIPT = "from dynbatch.commands.main import main\nimport sys\nsys.exit(main())\n"


def started(folder, error, called):
    """The end of a process in which the import of one module raises an error."""
    (folder / "sitecustomize.py").write_text(FAULT.format(error))
    (folder / "dynbatch").write_text(SCRIPT)  # as pip writes it
    (folder / "other.py").write_text("import dynbatch")
    command = {"script": [folder / "dynbatch"], "other": [folder / "other.py"]}
    return subprocess.run(
        [sys.executable, *command.get(called, ["-m", "dynbatch"]), "--version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("called", ["module", "script"])
@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        ("KeyboardInterrupt", -signal.SIGINT, "interrupted\n"),
        ("MemoryError", 1, "error: there is not enough memory.\n  fix:  give smaller"),
        ("MemoryError('No 3 GiB')", 1, "error: there is not enough memory: No 3 GiB.\n  fix:"),
        ("ImportError('no numpy')", 1, "error: no numpy\n"),
    ],
)
def test_an_import_that_fails_is_told_in_a_line(tmp_path, error, status, told, called):
    ended = started(tmp_path, error, called)
    assert ended.returncode == status and ended.stderr.startswith(told), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("error", "called"), [("RuntimeError", "module"), ("MemoryError", "other")]
)
def test_other_errors_and_other_programs_have_their_traceback(tmp_path, error, called):
    assert f"{error}\n" in started(tmp_path, error, called).stderr.partition("Traceback")[2]
