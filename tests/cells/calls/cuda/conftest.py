"""These tests say themselves where graphs and parameters are."""

import pytest


@pytest.fixture(autouse=True)
def place() -> None:
    """In place of the folder's above, which has every test on both devices."""
