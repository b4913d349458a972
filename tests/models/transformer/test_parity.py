"""Attention, layers and stacks equal PyTorch's: batched, one by one, in both precisions."""

import pytest

from tests.marks import quick
from tests.models.transformer import pytorch_modules, reference
from tests.models.transformer.parity import assert_parity
from tests.torch_parity import import_torch

CONFIGURATIONS = 200


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("seed", quick(range(5), range(CONFIGURATIONS)))
def test_a_random_module_equals_pytorchs(seed):
    torch = import_torch()
    longest = 12 if seed < 7 else 512
    assert_parity(torch, pytorch_modules.random_case(torch, seed, longest), seed)


@pytest.mark.parametrize("seed", quick(range(3), range(CONFIGURATIONS)))
def test_random_options_equal_the_formulas(seed):
    torch = import_torch()
    longest = 12 if seed < 8 else 512
    assert_parity(torch, reference.random_case(torch, seed, longest), seed)
