"""`sum_gradients`: the gradients of all ranks, added up on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.kernels import arrays as kernels
from dynbatch.kernels.rows import sum_rows_by_id
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.stream import flush
from dynbatch.named_parameters import Parameters, named
from dynbatch.parallel.agreement import require_equal
from dynbatch.parallel.buckets import buckets
from dynbatch.parallel.communicator import DIRECT_BYTES, Communicator
from dynbatch.parallel.shared_gradients import SharedGradients
from dynbatch.parallel.transport import bytes_of
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse

BUCKET_BYTES = 1 << 25
"""Up to which dense gradients travel together: they are copied into one message."""

NONE, DENSE = -2, -1
"""What a rank says of a parameter without a gradient, and of a dense one; else its rows."""


def sum_gradients(communicator: Communicator, parameters: Parameters) -> None:
    """Replace each parameter's gradient by its sum over all ranks, the same bits on all of them.

    A gradient that is None on some ranks only, of sentences that are on others, is zero there; None
    on all stays None. Gradients of tables stay `RowSparse`: rows and values of all ranks travel,
    and rows of one id are added in the order of ranks. A gradient that is dense on any rank is
    dense on all.

    Each rank divides its own loss by the count of all ranks, of tokens or sentences; then sums are
    the gradients of the whole mini-batch, however unevenly it is cut:

        loss = F.sum([...of this rank's sentences...]) / tokens_of_all_ranks
        graph.backward(loss)
        parallel.sum_gradients(communicator, model)
        optimizer.step()

    Args:
        parameters: a `Module`, an `Optimizer`, parameters or pairs, the same on all ranks; frozen
            ones are left out.

    Cost: a message of 8 bytes a parameter. Dense gradients of ranks on one machine (Linux) lie in
        memory that all of them have: each rank adds one part of them for all. Elsewhere 2 (size -
        1) / size times their bytes travel, in messages of up to 32 MiB and with as much memory
        beside them. Of sparse ones the rows of all other ranks, in two messages.

    Raises:
        ParallelError: models differ: names the first parameter that does; no gradient has changed.
            Values are compared when parameters are first summed.
    """
    pairs = [(name, each) for name, each in named("sum_gradients", parameters) if not each.frozen]
    if communicator.size == 1 or not pairs:
        return
    counts = _counts(communicator, pairs)
    dense, sparse = [], []
    for (_, parameter), count in zip(pairs, counts.T, strict=True):
        if (count == DENSE).any():
            _make_dense(parameter)
            dense.append(parameter)
        elif (count != NONE).any():
            sparse.append((parameter, np.maximum(count, 0)))
    _sum_dense(communicator, dense)
    if sparse:
        _sum_rows(communicator, sparse)


def _counts(communicator: Communicator, pairs: Sequence[tuple[str, Parameter]]) -> Array:
    """The kind of gradient on each rank, (size, parameters) int64: NONE, DENSE or its rows.

    Where places in common memory differ, since a rank has made a model anew, all forget them.

    Raises:
        ParallelError: the parameters differ.
    """
    ours = np.array([_count(parameter) for _, parameter in pairs], np.int64)
    signature = [(name, each.shape, each.dtype.char, each.device.is_cuda) for name, each in pairs]
    digest = blake2b(repr(signature).encode(), digest_size=16).digest()
    parameters = [parameter for _, parameter in pairs]
    shared = _shared_gradients(communicator)
    note = digest, shared.digest(parameters), ours.tobytes(), _new_values(shared, parameters)
    digests, places, counts, values = zip(*communicator.gather_objects(note), strict=True)
    if len(set(digests)) > 1:
        described = {f"parameter {k}": _described(*pair) for k, pair in enumerate(pairs)}
        require_equal(
            "sum_gradients", communicator.gather_objects(described),
            "all ranks have the same model, with the same parameters frozen",
            "build it on all ranks in the same way; freeze and convert it outside of "
            "`if communicator.rank == ...`",
        )  # fmt: skip
    if all(values):
        names = [f"digest of parameter {k}, {name!r}" for k, (name, _) in enumerate(pairs)]
        require_equal(
            "sum_gradients", [dict(zip(names, each, strict=True)) for each in values],
            "all ranks begin with the same parameters; equal updates keep them equal",
            "build the model from the same seed (rng=) on all ranks, or, before the first "
            "update,\n        communicator.broadcast(*[each.value for each in model.parameters()])",
        )  # fmt: skip
    shared.compared.update(parameters)
    if len(set(places)) > 1:
        shared.leave(parameters)
    return np.stack([np.frombuffer(each, np.int64) for each in counts])


def _new_values(shared: SharedGradients, parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """A digest of each parameter's value; of none where all have been compared."""
    if all([parameter in shared.compared for parameter in parameters]):
        return ()
    values = (bytes_of(transfer.to_host(parameter.value)) for parameter in parameters)
    return tuple([blake2b(value, digest_size=8).hexdigest() for value in values])


def _count(parameter: Parameter) -> int:
    grad = parameter.grad
    if grad is None:
        return NONE
    return grad.rows.size if isinstance(grad, RowSparse) else DENSE


def _described(name: str, parameter: Parameter) -> str:
    shape, dtype, device = parameter.shape, parameter.dtype, parameter.device
    return f"{name!r}, {dtype}{shape}{' on a GPU' if device.is_cuda else ''}"


def _make_dense(parameter: Parameter) -> None:
    """Have a parameter's gradient be an array; without a gradient, of zeros."""
    grad = parameter.grad
    if isinstance(grad, RowSparse):
        parameter.grad = grad.dense()
    elif grad is None:
        parameter.grad = parameter.gradient_buffer()
        kernels.fill(parameter.grad, 0)


def _sum_dense(communicator: Communicator, parameters: Sequence[Parameter]) -> None:
    """Sum dense gradients: in memory that the ranks share, or by messages."""
    on_host = [each for each in parameters if not each.device.is_cuda]
    are_large = sum([each.value.nbytes for each in on_host]) > DIRECT_BYTES
    are_summed = are_large and _shared_gradients(communicator).sum(communicator, on_host)
    travelling = [each for each in parameters if each.device.is_cuda or not are_summed]
    for bucket in buckets([cast("Array", each.grad) for each in travelling], BUCKET_BYTES):
        communicator.all_reduce(*bucket)


def _shared_gradients(communicator: Communicator) -> SharedGradients:
    shared = _shared.get(communicator)
    if shared is None:
        shared = _shared[communicator] = SharedGradients()
        communicator.kept.callback(shared.leave)
    return shared


_shared: WeakKeyDictionary[Communicator, SharedGradients] = WeakKeyDictionary()


def _sum_rows(communicator: Communicator, sparse: Sequence[tuple[Parameter, Array]]) -> None:
    def kind(number: int) -> tuple[bool, str]:
        parameter, _ = sparse[number]
        return parameter.device.is_cuda, parameter.dtype.char

    parts = [_rows_and_values(parameter) for parameter, _ in sparse]
    rows = _gathered(communicator, [ids for ids, _ in parts], [counts for _, counts in sparse])
    for _, group in groupby(sorted(range(len(sparse)), key=kind), kind):
        numbers = list(group)
        counts = [sparse[k][1] * sparse[k][0].shape[1] for k in numbers]
        values = _gathered(communicator, [parts[k][1] for k in numbers], counts)
        for k, flat in zip(numbers, values, strict=True):
            parameter = sparse[k][0]
            height, width = parameter.shape
            ids, sums = sum_rows_by_id(rows[k], flat.reshape(-1, width))
            parameter.grad = RowSparse(ids, sums, (height, width))
        flush(values[0])


def _rows_and_values(parameter: Parameter) -> tuple[Array, Array]:
    grad = parameter.grad
    if isinstance(grad, RowSparse):
        return grad.rows, grad.values.reshape(-1)
    return np.empty(0, np.int64), parameter.value[:0].reshape(-1)


def _gathered(
    communicator: Communicator, own: Sequence[Array], counts: Sequence[Array]
) -> list[Array]:
    """Each array's parts of all ranks, one after the other; all travel in one message.

    Args:
        own:    flat arrays of one dtype and device.
        counts: elements that each rank has of each array, (size,).
    """
    rank = communicator.rank
    bounds = np.concatenate([[0], np.sum(counts, axis=0).cumsum()]).tolist()
    travelling = device_of(own[0]).xp.empty(bounds[-1], own[0].dtype)
    kernels.collect(own, travelling[bounds[rank] : bounds[rank + 1]])
    communicator.all_gather(travelling, bounds)
    if len(own) == 1:
        return [travelling]
    ends = np.cumsum(counts, axis=0) + bounds[:-1]  # of each array's part of each rank
    starts = (ends - counts).ravel().tolist()
    parts = [travelling[s:e] for s, e in zip(starts, ends.ravel().tolist(), strict=True)]
    return kernels.split(kernels.pack(parts), [(int(count.sum()),) for count in counts])
