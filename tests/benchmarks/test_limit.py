import pytest

from benchmarks import limit


@pytest.mark.usefixtures("one_thread")
def test_the_rate_is_that_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr(limit, "SHAPE", (4, 3, 5))
    seconds = iter([3e-6, 2e-6, 4e-6])
    monkeypatch.setattr(limit, "_of_a_map", lambda left, right: next(seconds))
    monkeypatch.setattr(limit, "_REPEATS", 3)
    monkeypatch.delitem(limit.sys.modules, "torch", raising=False)
    assert limit.product_rate() == (pytest.approx(2 * 4 * 3 * 5 / 2e-6), "dynbatch")


@pytest.mark.usefixtures("one_thread")
def test_pytorch_counts_where_it_is_imported(monkeypatch):
    pytest.importorskip("torch", reason="its product is one of two")
    monkeypatch.setattr(limit, "_of_a_map", lambda left, right: 1e9)
    monkeypatch.setattr(limit, "_REPEATS", 1)
    rate = limit.product_rate()
    assert rate.library == "PyTorch" and rate.flops_per_second > 0
    assert str(rate).endswith("GFLOP/s in a product of 1324 × 384 × 1024 (PyTorch)")


def test_the_seconds_of_a_product_are_those_of_its_kernel():
    ones = limit.np.ones((2, 2), "float32")
    assert 0 < limit._of_a_map(ones, ones) < 1
