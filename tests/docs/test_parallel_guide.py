"""The guide of several processes, which runs as one process with all pages, run by two."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/parallel.md"


@pytest.mark.exhaustive
def test_two_processes_run_the_guide(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "guide.py").write_text("\n".join(blocks))
    ran = subprocess.run(
        [sys.executable, "-m", "dynbatch", "launch", "-n", "2", "guide.py"],
        cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "40 updates by 2 process" in lines
    own = [line for line in lines if not line.startswith("[1] ")]
    assert sorted(own) == sorted(line.removeprefix("[1] ") for line in lines if line not in own)
