"""`Optimizer.shard`: state in parts, the bits of the whole, states for any number of ranks."""

import numpy as np
import pytest

from dynbatch import optim
from dynbatch.errors import ArgumentError
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.optim import sharding
from dynbatch.parallel import Communicator
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.parallel.ranks import on_ranks

SHAPES = {
    "table": (7, 3),
    "one": (1,),
    "bias": (5,),
    "weight": (4, 6),
    "idle": (6,),
    "none": (0, 2),
}


def groups(parameters):
    vectors = [pair for pair in parameters if len(pair[1].shape) < 2]
    others = [pair for pair in parameters if len(pair[1].shape) > 1]
    return [{"params": others, "weight_decay": 0.1}, {"params": vectors, "lr": 0.02}]


ALGORITHMS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.2),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw-groups": lambda p: optim.AdamW(groups(p), lr=0.01, amsgrad=True),
    "eg": lambda p: optim.EG(p, lr=0.1),
}
every_algorithm = pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def parameters_of(seed=0):
    rng = np.random.default_rng(seed)
    made = {name: Parameter(rng.uniform(0.1, 1.0, shape)) for name, shape in SHAPES.items()}
    made["bias"].replace(made["bias"].value.astype(np.float32))
    made["frozen"] = Parameter(rng.uniform(0.1, 1.0, (3, 3)))
    made["frozen"].frozen = True
    made["weight"].frozen_rows = [1, 2]
    return list(made.items())


def give_gradients(parameters, step):
    """Gradients that depend on the step only; some are sparse, and some missing."""
    rng = np.random.default_rng(100 + step)
    for name, parameter in parameters:
        if name == "table":
            rows = np.sort(rng.choice(7, step % 8, replace=False))
            values = rng.standard_normal((rows.size, 3)).astype(parameter.dtype)
            parameter.grad = RowSparse(rows, values, parameter.shape)
        elif name != "idle" or step == 2:
            parameter.grad = rng.standard_normal(parameter.shape).astype(parameter.dtype)
        if isinstance(parameter.grad, np.ndarray):
            parameter.grad = to_device(parameter.grad, parameter.device)
        elif parameter.grad is not None:
            parameter.grad = parameter.grad.to(parameter.device)


def train(parameters, optimizer, steps):
    for step in steps:
        give_gradients(parameters, step)
        optim.clip_grad_norm_(optimizer, 2.0)
        optimizer.step()


def values_of(parameters):
    return {name: parameter.numpy() for name, parameter in parameters}


def bytes_of_state(optimizer):
    return sum(slot.nbytes for each in optimizer._states for slot in each.slots.values())


def require_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], name, strict=True)


@every_algorithm
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sharded_optimizer_has_the_bits_and_the_state_of_the_plain_one(make, size, monkeypatch):
    monkeypatch.setattr(sharding, "JOINED_BYTES", 200)  # the larger ones travel by themselves

    def run(communicator):
        parameters = parameters_of()
        optimizer = make(parameters).shard(communicator)
        planned = optimizer.state_bytes
        train(parameters, optimizer, range(5))
        assert planned == bytes_of_state(optimizer)
        return values_of(parameters), optimizer.state_dict()

    parameters = parameters_of()
    plain = make(parameters)
    train(parameters, plain, range(5))
    for values, state in on_ranks(size, run):
        require_same(values, values_of(parameters))
        require_same(state, plain.state_dict())


@every_algorithm
def test_a_state_goes_on_with_any_number_of_ranks(make):
    parameters = parameters_of()
    plain = make(parameters)
    train(parameters, plain, range(3))
    saved, weights = plain.state_dict(), values_of(parameters)
    train(parameters, plain, range(3, 6))

    def resume(communicator):
        own = parameters_of(seed=1)
        for name, parameter in own:
            parameter.assign(weights[name])
        optimizer = make(own).shard(communicator)
        optimizer.load_state_dict(saved)
        require_same(optimizer.state_dict(), saved)
        train(own, optimizer, range(3, 6))
        return values_of(own)

    for size in (1, 2, 3):
        for values in on_ranks(size, resume):
            require_same(values, values_of(parameters))


def test_a_rank_keeps_its_share_of_the_bytes_and_sends_its_share_of_the_values():
    shapes, sent = [(300, 64), (64,), (64, 256), (256,), (256, 7), (7,)], {}

    def run(communicator):
        parameters = [Parameter(np.ones(shape, np.float32)) for shape in shapes]
        optimizer = optim.Adam(parameters).shard(communicator)
        exchange = communicator._host.exchange
        for parameter in parameters:
            parameter.grad = np.ones_like(parameter.value)

        def counted(out, *more):
            told = sum(each.nbytes for each in out if each is not None)
            sent[communicator.rank] = sent.get(communicator.rank, 0) + told
            exchange(out, *more)

        communicator._host.exchange = counted
        optimizer.step()
        before = bytes_of_state(optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        assert bytes_of_state(optimizer) == before
        return before

    values = 4 * sum(int(np.prod(shape)) for shape in shapes)
    for size in (2, 3, 4):
        sent.clear()
        kept = on_ranks(size, run)
        assert sum(kept) == 2 * values
        assert max(kept) <= 2 * values / size + 8 * len(shapes)  # an element of each, in two slots
        # Values once, and the two slots for the state dict.
        assert sum(sent.values()) == 3 * values * (size - 1)


class Alone(Communicator):
    """A rank of two without the other, whose parts stay as they are."""

    def __init__(self, rank):
        self.rank, self.size = rank, 2

    def all_gather(self, array, bounds):
        pass


# "eg" divides by the sums of all parts, which are whole after the last one only.
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "eg"])
def test_parts_are_updated_on_a_gpu(name, cuda, monkeypatch):
    make = ALGORITHMS[name]
    monkeypatch.setattr(sharding, "JOINED_BYTES", 0)
    whole, cut = parameters_of(), parameters_of()
    for _, parameter in (*whole, *cut):
        parameter.replace(parameter.value.astype(np.float32))
        parameter.to("cuda")
    plain, parts = make(whole), [make(cut).shard(Alone(rank)) for rank in range(2)]
    for step in range(4):
        for parameters, optimizers in ((whole, [plain]), (cut, parts)):
            give_gradients(parameters, step)
            optim.clip_grad_norm_(optimizers[0], 2.0)
            for optimizer in optimizers:
                optimizer.step(clear=False)
            optimizers[0].zero_grad()
    require_same(values_of(cut), values_of(whole))


def test_a_state_is_cut_once():
    optimizer = optim.SGD([Parameter(np.ones(4))], momentum=0.9)
    optimizer.step()
    with pytest.raises(ArgumentError, match="sharded already"):
        optimizer.shard(Communicator()).shard(Communicator())
