"""Measurements of PyTorch are what can be counted by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dynbatch.padding.pytorch import measure_torch  # noqa: E402

ROWS, WIDTH = 1000, 50
ONE = 4 * ROWS * WIDTH


def test_peak_of_a_chain_is_what_is_kept_and_the_gradients_on_the_way() -> None:
    x = torch.ones(ROWS, WIDTH)
    weight = torch.ones(WIDTH, requires_grad=True)

    def loss() -> torch.Tensor:
        return torch.tanh(torch.tanh(x * weight)).sum()

    step = measure_torch(loss, [weight])
    # tanh keeps its output; the product is free once nothing reads it; x lay there before.
    assert step.saved_bytes == 2 * ONE + 4 * ROWS * WIDTH
    # Most at once: both outputs and the gradient of the second, besides small sums.
    assert 3 * ONE <= step.peak_bytes <= 3 * ONE + 1000
    assert step.gradient_bytes == 4 * WIDTH
    assert weight.grad is None


def test_gradients_of_parameters_are_told_apart() -> None:
    weight = torch.ones(ROWS, WIDTH, requires_grad=True)
    ids = torch.tensor([1, 2, 3])
    step = measure_torch(lambda: torch.nn.functional.embedding(ids, weight).sum(), [weight])
    assert step.gradient_bytes == ONE
    assert 3 * WIDTH * 4 <= step.peak_bytes < 4 * 3 * WIDTH * 4


def test_views_and_inplace_operators_take_nothing() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    x = torch.ones(ROWS, WIDTH)
    plain = measure_torch(lambda: (x * weight).sum(), [weight])
    viewed = measure_torch(lambda: (x * weight).mul_(2.0).view(-1, 10).sum(), [weight])
    assert plain.peak_bytes < 2.1 * ONE
    assert viewed.peak_bytes < 2.1 * ONE + 1000
