"""Attention, layers and stacks against PyTorch's modules: batched, one by one, both precisions."""

import numpy as np
import pytest

from tests.marks import quick
from tests.models.transformer.parity import expected, found, random_case
from tests.torch_parity import import_torch

CONFIGURATIONS = 200
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}  # in this order: float32 rounds the values

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")


@pytest.mark.parametrize("seed", quick(range(7), range(CONFIGURATIONS)))
def test_a_random_module_equals_pytorchs_batched_and_one_by_one(seed):
    torch = import_torch()
    case = random_case(torch, seed, longest=12 if seed < 7 else 512)
    values, gradients, named = expected(torch, case)
    names = [name for name, _ in case.ours.named_parameters()]
    assert sorted(named) == sorted(names)
    everyone = list(range(len(case.sentences)))
    for dtype, tolerance in TOLERANCE.items():
        runs = [found(case, dtype, everyone)]
        singles = [found(case, dtype, [k]) for k in everyone]
        runs.append(
            (
                [value for single in singles for value in single[0]],
                [gradient for single in singles for gradient in single[1]],
                [np.sum(of_all, axis=0) for of_all in zip(*[s[2] for s in singles], strict=True)],
            )
        )
        for own in runs:
            assert_close(own[0], values, tolerance, "values")
            assert_close(own[1], gradients, tolerance, "gradients of inputs")
            assert_close(own[2], [named[name] for name in names], tolerance, names)


def assert_close(own, theirs, tolerance, what):
    for k, (a, b) in enumerate(zip(own, theirs, strict=True)):
        scale = max(1.0, np.abs(b).max(initial=0))
        name = what if isinstance(what, str) else what[k]
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=f"{name} {k}")
