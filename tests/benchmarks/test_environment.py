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


def test_own_work_is_not_taken_for_that_of_others(monkeypatch):
    clock = {"now": 10.0, "busy": 500.0, "own": 3.0}
    monkeypatch.setattr(environment.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(environment, "_busy_seconds", lambda: clock["busy"])
    monkeypatch.setattr(environment, "_own_seconds", lambda: clock["own"])
    others = environment.OtherWork()
    clock.update(now=20.0, busy=518.0, own=21.0)
    assert others.cores() == 0.0 and others.warning() == ""
    clock.update(busy=530.0)
    assert others.cores() == 1.2
    assert others.warning().startswith("WARNING: other work kept 1.2 processors busy")


def test_processor_seconds_only_grow():
    busy, own = environment._busy_seconds(), environment._own_seconds()
    sum(range(300_000))
    assert environment._busy_seconds() >= busy and environment._own_seconds() >= own > 0
