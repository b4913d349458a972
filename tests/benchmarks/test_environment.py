import platform

import numpy as np

from benchmarks import environment


class Dynet:
    name, version = "dynet", "2.1"


def test_versions_name_everything_that_was_timed():
    found = environment.versions([Dynet()])
    assert found["python"] == platform.python_version()
    assert found["numpy"] == np.__version__
    assert found["dynet"] == "2.1"
    assert "dynet" not in environment.versions([])


def test_kernel_lines_show_settings_that_change_speed(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")
    monkeypatch.setenv("HOME_MADE", "no")
    lines = environment.kernel_lines()
    assert lines[0].startswith("processor")
    assert any(line.startswith("numpy") for line in lines)
    assert "setting    OPENBLAS_CORETYPE=SkylakeX" in lines
    assert not any("HOME_MADE" in line for line in lines)
