"""Arrays go between dynbatch and other libraries, on the host and on a GPU, by DLPack."""

import gc
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import BackendError, DtypeError, FreedError, GraphError
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.in_flight import hold
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import devices
from tests.cuda.foreign import Interfaced, Tensor, Unshared

SHAPES = ((), (3,), (4, 3), (0, 3), (1, 3), (33, 3))


def matrices(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


def counted(run):
    """Launches, uploads and uploaded bytes of what `run` hands to the GPU."""
    found = queue()
    names = ("launches", "uploads", "uploaded_bytes")
    before = [getattr(found, name) for name in names]
    run()
    return [getattr(found, name) - b for name, b in zip(names, before, strict=True)]


@contextmanager
def watched(cuda):
    """Waits of the host inside, on a GPU that works as late as it may; a skip on a real one.

    Memory of the stand-in that is freed waits too, so what earlier work has held is freed first.
    """
    if not hasattr(cuda, "settings"):
        pytest.skip("what the host waits for is seen on the stand-in")
    cuda.cuda.Device().synchronize()
    hold(cuda, None)
    gc.collect()  # of tests before this one
    with devices.simulated(asynchronous=True), devices.waits() as waits:
        yield waits


# In -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [Tensor, Interfaced, lambda cupy, x: cupy.asarray(x)])
def test_arrays_of_a_gpu_are_inputs(cuda, make, dtype):
    arrays = matrices(dtype)
    with db.Graph("cuda", dtype) as graph:
        nodes = [F.input(graph, make(cuda, array)) for array in arrays]
        for node, array in zip(nodes, arrays, strict=True):
            assert np.array_equal(node.value, array)
        assert graph.statistics.batches == 1


def test_inputs_of_a_gpu_are_one_launch_and_none_of_their_bytes_comes_to_the_host(
    cuda, monkeypatch
):
    arrays = [np.ones((1000, 50), np.float32) * k for k in range(8)]
    tensors = [Tensor(cuda, array) for array in arrays]
    if not hasattr(cuda, "settings"):
        cuda.cuda.Device().synchronize()
    with db.Graph("cuda") as graph:

        def run():
            with monkeypatch.context() as patch:
                if hasattr(cuda, "settings"):  # CuPy's own class cannot be patched
                    patch.setattr(cuda.ndarray, "get", None)
                nodes.extend([F.input(graph, tensor) for tensor in tensors])
                graph.forward()

        nodes = []
        launches, uploads, uploaded = counted(run)
        # One upload of the table that says where each lies: six numbers of 8 bytes an input.
        assert (launches, uploads, uploaded) == (1, 1, 8 * 6 * 8)
        assert all(np.array_equal(n.value, a) for n, a in zip(nodes, arrays, strict=True))


def test_inputs_of_host_and_gpu_are_one_batch(cuda):
    arrays = matrices()
    with db.Graph("cuda") as graph:
        nodes = [
            F.input(graph, Tensor(cuda, array) if k % 2 else array)
            for k, array in enumerate(arrays)
        ]
        launches, uploads, _ = counted(graph.forward)
        assert (launches, uploads, graph.statistics.batches) == (2, 1, 1)
        for node, array in zip(nodes, arrays, strict=True):
            assert np.array_equal(node.value, array)


def test_parts_of_arrays_of_a_gpu_are_inputs(cuda):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = cuda.asarray(whole)
    parts = (np.s_[1:3], np.s_[:, 2:4], np.s_[::2, ::3], np.s_[:, :1])
    with db.Graph("cuda") as graph:
        nodes = [F.input(graph, array[part]) for part in parts]
        turned = F.input(graph, array.T)
        assert np.array_equal(turned.value, whole.T)
        for node, part in zip(nodes, parts, strict=True):
            assert np.array_equal(node.value, whole[part])


def test_a_stream_that_has_not_finished_the_tensor_is_waited_for_by_the_gpu_alone(cuda):
    with watched(cuda) as waits, db.Graph("cuda") as graph:
        tensor = Tensor(cuda, np.zeros(3, np.float32))
        with tensor.stream:
            tensor.array.fill(7)  # late: nobody has waited for this stream
        node = F.input(graph, tensor)
        graph.forward()
        assert not waits and not tensor.stream.done
        assert node.value.tolist() == [7, 7, 7]


def test_an_input_is_kept_until_the_gpu_has_read_it(cuda):
    tensors = [Tensor(cuda, np.full(3, 5, np.float32))]
    memory = weakref.ref(tensors[0].array.data.mem)
    with watched(cuda):
        with db.Graph("cuda") as graph:
            taken = F.input(graph, tensors.pop()).device_value
        gc.collect()
        assert memory() is not None  # nobody else holds it
        assert taken.get().tolist() == [5, 5, 5]
    hold(cuda, None)
    gc.collect()
    assert memory() is None


def test_training_with_inputs_of_a_gpu_is_training_with_those_of_the_host(cuda):
    def losses(make):
        model = models.LSTM(3, 4, rng=0).astype("float64").to("cuda")
        optimizer, found = optim.SGD(model, lr=0.1), []
        for _ in range(2):
            with db.Graph("cuda", "float64") as graph:
                xs = [F.input(graph, make(array)) for array in matrices("float64")[2:]]
                found.append(F.mean([F.sum(model(x)) for x in xs]))
                graph.backward(found[-1])
            optimizer.step()
        return [float(loss.value) for loss in found]

    assert losses(lambda array: Tensor(cuda, array)) == losses(lambda array: array)


def test_dropout_draws_for_an_input_of_a_gpu(cuda):
    def values(seed):
        with db.Graph("cuda", seed=seed) as graph:
            inputs = [F.input(graph, Tensor(cuda, np.ones((5, 8), np.float32))) for _ in "ab"]
            return [F.dropout(x, 0.5).value for x in inputs]

    first, second = values(1)
    assert not np.array_equal(first, second)
    assert np.array_equal(values(1), [first, second])
    assert not np.array_equal(values(2)[0], first)


def test_a_checked_graph_takes_arrays_of_a_gpu(cuda):
    with db.Graph("cuda", check=True) as graph:
        x = F.input(graph, Tensor(cuda, np.ones((2, 3), np.float32)))
        assert F.tanh(x).value.shape == (2, 3)


def test_what_cannot_be_an_input_is_an_error_with_its_fix(cuda):
    tensor = Tensor(cuda, np.ones(3, np.float32))
    with db.Graph() as graph:
        with pytest.raises(
            BackendError, match=r'on a GPU, the graph on the CPU(.|\n)*device="cuda"'
        ):
            F.input(graph, tensor)
        with pytest.raises(BackendError, match="type 8"):
            F.input(graph, Elsewhere(8, 0))
        with pytest.raises(BackendError, match="Elsewhere cannot be taken: no such device"):
            F.input(graph, Elsewhere(None, 0))
    with db.Graph("cuda", "float64") as graph:
        with pytest.raises(
            DtypeError, match=r"float32 on the GPU, the graph float64(.|\n)*torch.float64"
        ):
            F.input(graph, tensor)
        with pytest.raises(DtypeError, match="int64 on the GPU"):
            F.input(graph, Tensor(cuda, np.arange(3)))
        assert F.input(graph, Tensor(cuda, np.zeros((1, 2, 3)))).shape == (1, 2, 3)
        with pytest.raises(DtypeError, match=r"use tensor.detach\(\)"):
            F.input(graph, Unshared(cuda, np.zeros(3)))
        with pytest.raises(BackendError, match="device 'cuda:1': this machine has 1 GPU, counted"):
            F.input(graph, Elsewhere(2, 1))
        node = F.constant(graph, 1.0)
        with pytest.raises(DtypeError, match="a node is not an array"):
            F.input(graph, node)
        with pytest.raises(DtypeError, match="a parameter is not an array"):
            F.input(graph, db.Parameter(np.ones(3)))


def test_numbers_that_lie_between_two_places_of_a_gpu_are_refused(cuda):
    """Their distance from others is no number of elements, and no kernel can read them."""
    room = cuda.zeros(64, np.uint8)
    askew = cuda.ndarray((3,), np.float32, room.data + 2)
    apart = cuda.ndarray((3,), np.float32, room.data, strides=(6,))
    whole = cuda.ndarray((1, 3), np.float32, room.data + 4, strides=(6, 4))  # of one row, no step
    parameter = db.Parameter(np.zeros(3, np.float32)).to("cuda")
    with db.Graph("cuda") as graph:
        for array in (askew, apart):
            given = array
            for make in (None, Tensor, Interfaced):
                if make is not None:
                    given = make(cuda, np.zeros(3, np.float32))
                    given.array = array
                with pytest.raises(BackendError, match=r"(?s)multiples of 4.*made at .*dlpack"):
                    F.input(graph, given)
                with pytest.raises(BackendError, match="Parameter 'w': an array of float32 at"):
                    db.Parameter(given, "w")
            with pytest.raises(BackendError, match="multiples of 4 bytes"):
                parameter.value = array
        assert F.input(graph, whole).value.tolist() == [[0.0] * 3]


class Elsewhere:
    """Says that it is on some device."""

    def __init__(self, kind, number):
        self.device = kind, number

    def __dlpack_device__(self):
        if self.device[0] is None:
            raise ValueError("no such device")
        return self.device

    def __dlpack__(self, **_):
        raise AssertionError("nobody should ask")


# Out ----------------------------------------------------------------------------------------------


def test_a_value_is_handed_out_on_the_device_that_it_is_on(device):
    with db.Graph(device) as graph:
        node = F.input(graph, [[1.0, 2.0]]) * 2
        array = node.device_value
        assert isinstance(array, np.ndarray) is (device == "cpu")
        assert db.Parameter(array).numpy().tolist() == [[2, 4]]
        assert node.__dlpack_device__() == ((1, 0) if device == "cpu" else (2, 0))


def test_what_is_handed_out_is_a_copy_that_outlives_the_graph(device):
    with db.Graph(device) as graph:
        node = F.tanh(F.input(graph, np.ones((2, 3))))
        array = node.device_value
        array.fill(5)
        again = node.device_value
    with db.Graph(device) as other:  # takes the arena of the first
        assert (F.input(other, np.full((40, 3), 9.0)) * 2).value.all()
    assert np.allclose(db.Parameter(again).numpy(), np.tanh(1))
    assert (db.Parameter(array).numpy() == 5).all()
    with pytest.raises(GraphError, match="closed"):
        node.device_value  # noqa: B018


def test_another_stream_reads_a_value_after_it_was_made_and_the_host_waits_for_nothing(cuda):
    with watched(cuda) as waits, db.Graph("cuda") as graph:
        node = F.tanh(F.input(graph, Tensor(cuda, np.ones((2, 3), np.float32))))
        reader = cuda.cuda.Stream(non_blocking=True)
        capsule = node.__dlpack__(stream=reader.ptr, max_version=(1, 0))  # as PyTorch asks
        with reader:
            taken = cuda.from_dlpack(capsule)
        assert not waits
        with reader:
            assert np.allclose(taken.get(), np.tanh(1))


def test_launches_for_a_value_that_is_handed_out(cuda):
    with db.Graph("cuda") as graph:
        node = F.input(graph, Tensor(cuda, np.ones((2, 3), np.float32)))
        graph.forward()
        assert counted(lambda: node.device_value) == [1, 0, 0]


def test_kept_values_gradients_and_the_loss_are_handed_out_after_backward(device):
    weight = db.Parameter(np.array([[1.0, 2.0]])).to(device)
    with db.Graph(device, "float64") as graph:
        x = F.input(graph, [[3.0, 4.0]]).keep()
        y = F.linear(x, weight)
        unread = F.tanh(x).keep()
        loss = F.sum(y)
        graph.backward(loss)
        gradient, nothing, inside = x.device_gradient, unread.device_gradient, loss.device_value
        assert isinstance(gradient, np.ndarray) is (device == "cpu")
        with pytest.raises(FreedError, match="its gradient was not kept"):
            y.device_gradient  # noqa: B018
    found = [gradient, nothing, inside.reshape(1), x.device_value, loss.device_value.reshape(1)]
    expected = [[[1, 2]], [[0, 0]], [11], [[3, 4]], [11]]
    assert [db.Parameter(array).numpy().tolist() for array in found] == expected
    assert x.value.tolist() == [[3, 4]] and db.Parameter(x.device_value).numpy().tolist() == [
        [3, 4]
    ]


def test_a_reader_that_wants_the_host_gets_a_copy_there(device):
    with db.Graph(device) as graph:
        node = F.input(graph, [1.0, 2.0])
        assert np.from_dlpack(node, device="cpu").tolist() == [1, 2]
        with pytest.raises(BufferError, match="as a copy"):
            np.from_dlpack(node, copy=False)
        with pytest.raises(BufferError):
            node.__dlpack__(dl_device=(8, 0))


def test_a_node_of_a_cell_has_no_value_to_hand_out():
    @db.cell
    def step(x, h, p):
        np.from_dlpack(h)
        return h, h

    with db.Graph() as graph, pytest.raises(GraphError, match="a cell is traced once"):
        db.scan(step, F.input(graph, np.ones((2, 3))), init=3)


# Parameters ---------------------------------------------------------------------------------------


def test_a_parameter_shares_memory_with_its_tensor_and_with_those_who_read_it(cuda):
    tensor = Tensor(cuda, np.ones((2, 3), np.float32), cuda.cuda.get_current_stream())
    tensor.__class__ = type("Writable", (Tensor,), {"__cuda_array_interface__": INTERFACE})
    parameter = db.Parameter(tensor)
    assert parameter.device.is_cuda and parameter.value.data.ptr == tensor.array.data.ptr
    taken = cuda.from_dlpack(parameter)
    parameter.grad = cuda.asarray(np.ones((2, 3), np.float32))
    optim.SGD([("w", parameter)], lr=0.5).step()
    assert tensor.array.get().tolist() == taken.get().tolist() == [[0.5] * 3] * 2
    assert np.from_dlpack(parameter, device="cpu").tolist() == [[0.5] * 3] * 2
    with pytest.raises(BufferError, match="the host needs a copy"):
        np.from_dlpack(parameter, device="cpu", copy=False)


INTERFACE = property(lambda self: self.array.__cuda_array_interface__)


def test_what_waits_for_a_parameter_is_started_before_it_is_handed_out(cuda):
    parameter = db.Parameter(np.ones(3)).to("cuda")
    arrays.fill(parameter.value, 4)
    assert cuda.from_dlpack(parameter).get().tolist() == [4, 4, 4]


def test_a_parameter_of_a_tensor_that_does_not_say_that_it_may_be_written_is_a_copy(cuda):
    tensor = Tensor(cuda, np.ones((2, 3), np.float32))
    parameter = db.Parameter(tensor)
    assert parameter.value.data.ptr != tensor.array.data.ptr
    constant = np.ones((2, 3))
    constant.flags.writeable = False
    parameter = db.Parameter(constant)
    parameter.value[...] = 2
    assert (constant == 1).all()


def test_a_copy_of_a_parameter_is_handed_out_where_one_is_asked_for(device):
    parameter = db.Parameter(np.ones(3)).to(device)
    options = {} if device == "cpu" else {"stream": 1}
    assert parameter.__dlpack__(copy=True, **options) is not None
    shared = np.from_dlpack(parameter, device="cpu", copy=True)
    shared[...] = 4
    assert parameter.numpy().tolist() == [1, 1, 1]


# PyTorch ------------------------------------------------------------------------------------------


def test_tensors_of_pytorch_on_the_host():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    parameter = db.Parameter(tensor)
    parameter.value[0, 0] = 7
    assert tensor[0, 0] == 7 and torch.from_dlpack(parameter)[0, 0] == 7
    with db.Graph() as graph:
        x = F.input(graph, tensor)  # converted, as arrays of NumPy are
        found = torch.from_dlpack(x * 2)
        assert found.dtype == torch.float32 and torch.equal(found, 2 * tensor.float())
        assert torch.from_dlpack(F.sum(x)).shape == ()
    assert torch.equal(found, 2 * tensor.float())
    with db.Graph() as graph, pytest.raises(DtypeError, match=r"tensor.detach\(\)"):
        F.input(graph, torch.ones(3, requires_grad=True))
    with pytest.raises(DtypeError, match="BFloat16"):
        db.Parameter(torch.ones(3, dtype=torch.bfloat16))


def test_tensors_of_pytorch_on_a_gpu():
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() and devices.has_gpu()):
        pytest.skip("no GPU that both PyTorch and CuPy can use")
    tensor = torch.arange(6, device="cuda").float().reshape(2, 3)
    parameter = db.Parameter(tensor)
    parameter.value.fill(2)
    assert (tensor == 2).all() and (torch.from_dlpack(parameter) == 2).all()
    with torch.cuda.stream(torch.cuda.Stream()), db.Graph("cuda") as graph:
        x = F.input(graph, tensor + 1)
        found = torch.from_dlpack(x * 2)
        assert found.is_cuda and (found == 6).all()
        assert np.from_dlpack(x, device="cpu").tolist() == [[3.0] * 3] * 2
