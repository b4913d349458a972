"""Ctrl-C at any line of an optimizer's step: the update is made as a whole, or not at all."""

import signal
from functools import partial

import numpy as np

from dynbatch import optim
from dynbatch.parameter import Parameter
from tests.interruptions import broken_off

FILES = ("optim/optimizer.py", "optim/parameter_state.py", "kernels/optimizers.py")


def test_a_signal_at_any_line_leaves_the_parameters_before_or_after_a_step():
    parameters = [Parameter(np.ones(3)), Parameter(np.ones((2, 2)))]
    optimizer = optim.Adam(parameters, lr=0.5)

    def prepare():
        for parameter in parameters:
            parameter.value[...] = 1.0
            parameter.grad = np.full(parameter.shape, 2.0)
        optimizer.load_state_dict(before)

    def moved():
        return [bool((parameter.value != 1.0).all()) for parameter in parameters]

    before, outcomes = optimizer.state_dict(), []
    prepare()
    raising = partial(signal.raise_signal, signal.SIGINT)
    for _, error in broken_off(optimizer.step, FILES, act=raising):
        assert isinstance(error, KeyboardInterrupt)
        stepped = [name for name in optimizer.state_dict() if name.endswith("/steps")]
        cleared = [parameter.grad is None for parameter in parameters]
        assert moved() == cleared == [len(stepped) == 2] * 2  # all, or none
        outcomes.append(moved()[0])
        prepare()
    assert outcomes.count(True) > 20
