"""`kernels.decimals` in C: threads, and every number of digits."""

import numpy as np

from dynbatch.kernels import decimals as kernels
from dynbatch.kernels.c import decimals
from dynbatch.kernels.runtime import parallel


def test_threads_read_the_same(monkeypatch):
    values = np.random.default_rng(0).normal(size=(3000, 50)).astype(np.float32)
    text = "".join([f"w{k} {' '.join(map(repr, row))}\n" for k, row in enumerate(values.tolist())])
    array = np.frombuffer(text.encode(), np.uint8)
    spans = kernels.split_lines(array, 50)
    for threads in (1, 2, 5):
        monkeypatch.setattr(parallel, "available", lambda threads=threads: threads)
        out = np.zeros_like(values)
        assert kernels.read_rows(array, spans, np.arange(3000), out).size == 0
        assert np.array_equal(out, values)


def test_few_numbers_are_left_to_python(monkeypatch):
    """Those of usual files are read in C, whatever the number of their digits."""
    fields = [f"{'1234567890123456789'[:n]}e-{n}" for n in range(1, 20)]
    fields += [f"0.{'9876543210987654321'[:n]}" for n in range(1, 19)]
    fields += ["1e-60", "1." + "0" * 30]
    asked = []

    def read_each(text, spans, rows, out, lines):
        asked.extend(lines.tolist())
        return kernels.read_each(text, spans, rows, out, lines)

    monkeypatch.setattr(decimals, "read_each", read_each)
    array = np.frombuffer("".join([f"w {field}\n" for field in fields]).encode(), np.uint8)
    out = np.zeros((len(fields), 1), np.float32)
    spans = kernels.split_lines(array, 1)
    assert kernels.read_rows(array, spans, np.arange(len(fields)), out).size == 0
    assert asked == [len(fields) - 2, len(fields) - 1]
    assert out[:, 0].tobytes() == np.array(fields, float).astype(np.float32).tobytes()
