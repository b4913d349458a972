import pytest

from benchmarks import limit


@pytest.mark.usefixtures("one_thread")
def test_the_rate_is_that_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr(limit, "SHAPE", (4, 3, 5))
    seconds = iter([3e-6, 2e-6, 4e-6])
    monkeypatch.setattr(limit, "_of_a_map", lambda left, right, precision: next(seconds))
    monkeypatch.setattr(limit, "_REPEATS", 3)
    monkeypatch.delitem(limit.sys.modules, "torch", raising=False)
    assert limit.product_rate() == (pytest.approx(2 * 4 * 3 * 5 / 2e-6), "dynbatch")


@pytest.mark.usefixtures("one_thread")
def test_pytorch_counts_where_it_is_imported(monkeypatch):
    pytest.importorskip("torch", reason="its product is one of two")
    monkeypatch.setattr(limit, "_of_a_map", lambda left, right, precision: 1e9)
    monkeypatch.setattr(limit, "_REPEATS", 1)
    rate = limit.product_rate()
    assert rate.library == "PyTorch" and rate.flops_per_second > 0
    assert limit.product_rate("bfloat16").library == "PyTorch"


def test_the_seconds_of_a_product_are_those_of_its_kernel():
    ones = limit.np.ones((2, 2), "float32")
    assert 0 < limit._of_a_map(ones, ones, "float32") < 1
    assert 0 < limit._of_a_map(ones, ones, "bfloat16") < 1


@pytest.mark.parametrize("threads", [1, 3])
def test_all_bytes_are_copied_each_time(monkeypatch, threads):
    monkeypatch.setattr(limit, "_COPIED_BYTES", 1000)
    copied = []

    def seconds(copy):
        copy()
        copied.append(None)
        return 0.5 / len(copied)

    copyto, sizes = limit.np.copyto, []
    monkeypatch.setattr(limit.np, "copyto", lambda to, of: [sizes.append(of.size), copyto(to, of)])
    monkeypatch.setattr(limit, "_seconds", seconds)
    assert limit.copy_rate(threads) == pytest.approx(1000 / (0.5 / 5))
    assert sum(sizes) == 5 * 1000 and len(sizes) == 5 * threads


def test_the_limits_of_a_machine_are_one_line():
    products = {"float32": limit.ProductRate(1.13e11, "dynbatch")}
    assert str(limit.Limits(products, 2.05e10)) == (
        "product of 1324 × 384 × 1024: float32 113 GFLOP/s (dynbatch); 20.5 GB/s copied"
    )
