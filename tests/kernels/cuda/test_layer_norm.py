from dynbatch.kernels import layer_norm as kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values
from tests.kernels.cuda.test_segment import normal

EPS = 1e-5


def test_bits_do_not_depend_on_the_other_rows(cupy, dtype):
    for width in (33, 1025):
        x = Values(normal(dtype, 20, width).array)
        results = []
        for part in (slice(0, 20), slice(7, 8)):
            device = [cupy.asarray(x.array[part]), cupy.empty(x.array[part].shape, dtype)]
            rows = len(device[0])
            mean, rstd = cupy.empty(rows, dtype), cupy.empty(rows, dtype)
            kernels.layer_norm(device[0], None, None, EPS, device[1], mean, rstd)
            queue().flush()
            results.append(device[1].get())
        assert results[0][7:8].tobytes() == results[1].tobytes()
