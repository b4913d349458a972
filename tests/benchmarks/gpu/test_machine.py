"""The card, driver and versions."""

import pytest

from benchmarks.gpu import machine


def test_the_card_is_described_before_pytorch_is_read(cuda, monkeypatch):
    """Which takes long from a cold disk; what goes on says what it knows."""
    monkeypatch.setattr(machine, "_of_torch", lambda: 1 / 0)
    states = machine.describe()
    first = next(states)
    with pytest.raises(ZeroDivisionError):
        next(states)
    assert first["card"] == "no card, the simulator" and first["cudnn"] is None
    assert "no card, the simulator" in machine.lines(first)[0]
