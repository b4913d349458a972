import shutil

import pytest

from benchmarks.peers.fastest_mkl import OPTION, run_with_fastest_mkl

ANSWERS = "import ctypes; assert ctypes.CDLL(None).mkl_serv_intel_cpu_true() == 1"


@pytest.mark.skipif(not shutil.which("cc"), reason="a library is compiled")
def test_the_module_runs_again_where_the_vendor_check_says_intel():
    once = ["-n", "1", "-r", "1"]
    assert run_with_fastest_mkl("timeit", [*once, OPTION, ANSWERS]) == 0
    assert run_with_fastest_mkl("timeit", [*once, OPTION, "1 / 0"]) == 1


def test_a_missing_compiler_is_told(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert run_with_fastest_mkl("timeit", [OPTION]) == 2
    assert "timeit: --fastest-mkl needs a C compiler" in capsys.readouterr().err
