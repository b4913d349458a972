"""Settings of the whole test suite."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.poison import poisoned_memory

# No test depends on how fast the machine is. In CI, hypothesis repeats the same examples.
settings.register_profile("dynbatch", settings(), deadline=None)
settings.load_profile("dynbatch")


@pytest.fixture
def dead_memory_is_nan() -> Iterator[None]:
    """Whatever of an arena is not alive holds NaN during the test."""
    with poisoned_memory():
        yield
