"""Whatever happens to parameters between sums, a sum is that of the gradients that ranks have."""

import numpy as np
import pytest

from dynbatch import parallel
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.parallel.ranks import on_ranks

SHAPES = [(150, 80), (7, 3), (0, 4), (30_001,), (101, 200)]


class Life:
    """Parameters of a rank. What all ranks do is drawn from `common`, the rest from `own`."""

    def __init__(self, communicator, seed):
        self.communicator = communicator
        self.common = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, communicator.rank])
        self.parameters = [Parameter(np.zeros(shape, "f4"), str(shape)) for shape in SHAPES]
        self.kept = []

    def freeze_or_train(self, place):
        self.parameters[place].frozen ^= True

    def convert(self, place):
        parameter = self.parameters[place]
        parameter.replace(parameter.value.astype(self.common.choice(["f4", "f8"])))
        parameter.grad = None

    def make_anew(self, place):
        old = self.parameters[place]
        if self.own.integers(2):
            self.parameters[place] = Parameter(old.value, old.name)
            self.parameters[place].frozen = old.frozen

    def take_away(self, place):
        grad, buffer = self.parameters[place].gradient_state
        if grad is buffer is not None and self.own.integers(2):
            self.kept.append((grad, grad.copy()))
            self.parameters[place].put_aside()

    def zero(self, place):
        self.parameters[place].zero_grad()

    def sum(self, place):
        order = self.common.permutation(len(SHAPES))[place:]
        chosen = [each for each in map(self.parameters.__getitem__, order) if not each.frozen]
        for each in chosen:
            if self.own.integers(4):
                each.grad = self.gradient(each)
        before = self.communicator.gather_objects([dense(each) for each in chosen])
        parallel.sum_gradients(self.communicator, chosen)
        for each, *gradients in zip(chosen, *before, strict=True):
            if all([gradient is None for gradient in gradients]):
                assert each.grad is None
                continue
            total, *others = [np.zeros(each.shape, "f4") if g is None else g for g in gradients]
            for other in others:
                total = total + other
            np.testing.assert_array_equal(dense(each), total, err_msg=each.name)
        for grad, copy in self.kept:
            np.testing.assert_array_equal(grad, copy)

    def gradient(self, parameter):
        """Integers, whose sums do not depend on the order: rows of one id are added in another."""
        numbers = self.own.integers(-9, 9, parameter.shape).astype(parameter.dtype)
        form = self.own.choice(["none", "rows", "buffer", "strided", "new"])
        if form == "none":
            return None
        if form == "rows" and len(parameter.shape) == 2:
            ids = np.arange(0, parameter.shape[0], 1 + self.own.integers(9))
            return RowSparse(ids, numbers[ids], parameter.shape)
        if form == "buffer":
            np.copyto(parameter.gradient_buffer(), numbers)
            return parameter.gradient_buffer()
        return np.asfortranarray(numbers) if form == "strided" else numbers


def dense(parameter):
    grad = parameter.grad
    if isinstance(grad, RowSparse):
        return grad.dense()
    return None if grad is None else grad.copy()


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_right_whatever_happens_in_between(size):
    def do(communicator):
        life = Life(communicator, seed=size)
        others = [life.freeze_or_train, life.convert, life.make_anew, life.take_away, life.zero]
        for _ in range(60):
            happens = life.common.choice([*others, life.sum, life.sum, life.sum])
            happens(int(life.common.integers(len(SHAPES))))

    on_ranks(size, do)
