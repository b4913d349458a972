"""Random settings of each family give what `transformers` gives: see `random_configurations`."""

import pytest

pytest.importorskip("torch", reason="compares with transformers on PyTorch, not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
from tests.models.pretrained.random_configurations import FAMILIES, TOLERANCE, compared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_what_is_written_are_those_of_transformers(family, seed, tmp_path):
    assert compared(family, seed, tmp_path, generates=False) <= TOLERANCE


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_texts_are_those_of_transformers(family, seed, tmp_path):
    assert compared(family, seed, tmp_path) <= TOLERANCE
