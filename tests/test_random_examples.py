"""`make test-all` tries more random examples of every test than `make test`."""

import pytest
from hypothesis import settings

from tests.random_examples import examples


@pytest.fixture
def profiles(pytestconfig):
    """Loads a profile of hypothesis by its name; after the test, the one that was asked for."""
    yield settings.load_profile
    settings.load_profile("all" if pytestconfig.getoption("--all") else "quick")


def test_the_profile_decides_how_many_are_tried(profiles):
    profiles("quick")
    assert examples(5, all=40).max_examples == 5
    profiles("all")
    chosen = examples(5, all=40, derandomize=True)
    assert chosen.max_examples == 40 and chosen.derandomize
    assert examples(5).max_examples == settings().max_examples == 100
